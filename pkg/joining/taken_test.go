package joining_test

import (
	"slices"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// The routing core hears that the decode worker began with a request: when it reserved blocks for
// KV to come, or took one that it does all of.
func TestTaken(t *testing.T) {
	for _, test := range []struct {
		name         string
		begin        func() (*joining.Join, time.Time)
		on, silentOn *workerv1.DecodeEvent
	}{
		{"one worker", func() (*joining.Join, time.Time) { return aggregatedTry(5) }, admitted, nil},
		{"two workers", disaggregatedTry, reserved, admitted},
	} {
		t.Run(test.name, func(t *testing.T) {
			j, now := test.begin()
			told := func(event *workerv1.DecodeEvent) bool {
				return slices.ContainsFunc(j.Handle(now, joining.DecodeMessage{Event: event}), func(a joining.Action) bool {
					tell, is := a.(joining.Tell)
					return is && tell.Event == routing.Event(routing.Taken{ID: j.ID(false), Role: controlv1.Role_ROLE_DECODE})
				})
			}
			if !told(test.on) {
				t.Error("it is not told")
			}
			if test.silentOn != nil && told(test.silentOn) {
				t.Error("it is told twice")
			}
		})
	}
}
