package joining_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A request whose tokens came of KV that had lost bits says that they may be
// others another time, also if an attempt after that one was exact.
func TestApproximateKVIsNotReproducible(t *testing.T) {
	for _, test := range []struct {
		name        string
		approximate []bool // of each attempt; all but the last die half-way
		want        bool
	}{
		{"exact", []bool{false}, true},
		{"exact, twice", []bool{false, false}, true},
		{"approximate", []bool{true}, false},
		{"approximate, then exact", []bool{true, false}, false},
		{"exact, then approximate", []bool{false, true}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			j := joining.New(joining.Params{
				Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 2 * len(test.approximate), Text: &words{}, MaxAttempts: 3, MaxRefusals: 4,
				Linger:  time.Second,
				Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
			})
			var all []joining.Action
			handle := func(event joining.Event) { all = append(all, j.Handle(now, event)...) }
			handle(joining.Start{})
			for attempt, approximate := range test.approximate {
				if attempt > 0 {
					handle(joining.Closed{Stream: joining.Stream{Attempt: attempt - 1}, Err: status.Error(codes.Unavailable, "connection lost")})
				}
				handle(joining.Dispatched{Attempt: attempt, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d"}, Prefill: routing.Ref{ID: "p"}}})
				decode := func(event *workerv1.DecodeEvent) {
					handle(joining.DecodeMessage{Attempt: attempt, Event: event})
				}
				first := 2 * attempt
				decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: &workerv1.Reserved{Ticket: &kvtransferv1.Ticket{}}}})
				handle(joining.PrefillMessage{Attempt: attempt, Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{
					FirstToken: &workerv1.FirstToken{TokenId: uint32(first)}}}})
				decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{Approximate: approximate}}})
				decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{Offset: uint32(first) + 1, TokenIds: []uint32{7}}}})
			}
			last := len(test.approximate) - 1
			handle(joining.PrefillMessage{Attempt: last, Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: &workerv1.KvSent{}}}})
			handle(joining.DecodeMessage{Attempt: last, Event: &workerv1.DecodeEvent{
				Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, DraftTokens: 7, AcceptedDraftTokens: 3}}}})
			handle(joining.Closed{Stream: joining.Stream{Attempt: last}})
			for _, action := range all {
				if f, is := action.(joining.Finish); is {
					if f.Err != nil || f.Route.GetReproducible() != test.want {
						t.Errorf("error %v, route %v", f.Err, f.Route)
					}
					if u := f.Usage; u.GetDraftTokens() != 7 || u.GetAcceptedDraftTokens() != 3 {
						t.Errorf("of the worker's 7 guesses, 3 of them right, the usage says %v", u)
					}
					return
				}
			}
			t.Fatal("it did not finish")
		})
	}
}
