package joining_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// What is not finite speaks against who computed it: a worker that did so itself, or
// either of two where one received it. Nobody is taken for dead; the request goes on
// elsewhere, and fails with a reason of its own when that does not help.
func TestWhatIsNotFiniteGoesOnElsewhere(t *testing.T) {
	for _, c := range []struct {
		name          string
		disaggregated bool
		side          joining.Side
		reason        string
		blames        []string
	}{
		{"decode, all of it", false, joining.Decode, api.ReasonNotFinite, []string{"d"}},
		{"decode, of a prefix that others computed", false, joining.Decode, api.ReasonKVNotFinite, []string{"d"}},
		{"decode, by itself", true, joining.Decode, api.ReasonNotFinite, []string{"d"}},
		{"decode, of what it received", true, joining.Decode, api.ReasonKVNotFinite, []string{"d", "p"}},
		{"prefill, by itself", true, joining.Prefill, api.ReasonNotFinite, []string{"p"}},
		{"prefill, of what it fetched", true, joining.Prefill, api.ReasonKVNotFinite, []string{"p"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			j := joining.New(joining.Params{
				Arrived: now, Tokenized: now, PromptTokens: 3, MaxTokens: 9, Text: silent{}, MaxAttempts: 3, MaxRefusals: 3, Linger: time.Second,
			})
			j.Handle(now, joining.Start{})
			for attempt := range 3 {
				d := joining.Dispatched{Attempt: attempt, Began: now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}}}
				if c.disaggregated {
					d.Prefill = routing.Ref{ID: "p", Epoch: 2}
				}
				j.Handle(now, d)
				if c.disaggregated {
					j.Handle(now, joining.DecodeMessage{Attempt: attempt, Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{
						Reserved: &workerv1.Reserved{Ticket: &kvtransferv1.Ticket{}}}}})
				}
				actions := j.Handle(now, joining.Closed{Stream: joining.Stream{Attempt: attempt, Side: c.side}, Err: rpc.Error(codes.DataLoss, c.reason, "no token can be drawn", 0)})
				var blamed []string
				asked, finished := false, false
				for _, action := range actions {
					switch a := action.(type) {
					case joining.Release:
						for _, failure := range a.Failures {
							blamed = append(blamed, failure.Worker.ID)
							if failure.Gone || failure.Busy || failure.Silent {
								t.Errorf("%+v", failure)
							}
						}
					case joining.Ask:
						asked = true
					case joining.Finish:
						refusal, is := errors.AsType[*routing.Refusal](a.Err)
						finished = is && refusal.Code == codes.DataLoss && refusal.Reason == api.ReasonNotFinite && refusal.RetryAfter == 0
					}
				}
				if !slices.Equal(blamed, c.blames) {
					t.Errorf("attempt %d blames %v, want %v", attempt, blamed, c.blames)
				}
				if last := attempt == 2; asked == last || finished != last {
					t.Fatalf("attempt %d: asked again %v, ended %v", attempt, asked, finished)
				}
			}
		})
	}
}
