package joining_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// No client can choose an id that is that of another request's second attempt.
func TestHedgeIDIsNoClients(t *testing.T) {
	j := joining.New(joining.Params{ID: "x"})
	if first, second := j.ID(false), j.ID(true); first != "x" || rpc.ValidRequestID(second) {
		t.Errorf("the attempts are %q and %q", first, second)
	}
}
