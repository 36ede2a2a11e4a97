package joining_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// No client can choose an id that is that of another request's second try.
func TestHedgeIDIsNoClients(t *testing.T) {
	j := joining.New(joining.Params{ID: "x"})
	if first, second := j.ID(false), j.ID(true); first != "x" || rpc.ValidRequestID(second) {
		t.Errorf("the tries are %q and %q", first, second)
	}
}
