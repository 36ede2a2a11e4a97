package joining_test

import (
	"testing"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Where a stop text ends a request, the usage has the drafts that the worker had verified by then.
func TestDraftsBeforeAStopText(t *testing.T) {
	for _, c := range []struct{ drafts, accepted, wantDrafts, wantAccepted uint32 }{
		{9, 4, 9, 4},
		{4, 9, 0, 0}, // no worker says that
	} {
		now := time.Unix(1000, 0)
		j := joining.New(joining.Params{
			Arrived: now, Tokenized: now, PromptTokens: 3, MaxTokens: 20, Text: &words{stopAfter: 4}, MaxAttempts: 1, Linger: time.Second,
		})
		var all []joining.Action
		say := func(e *workerv1.DecodeEvent) {
			all = append(all, j.Handle(now, joining.DecodeMessage{Event: e})...)
		}
		tokens := func(offset uint32, drafts, accepted uint32) *workerv1.DecodeEvent {
			return &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{
				Offset: offset, TokenIds: []uint32{7, 8}, DraftTokens: drafts, AcceptedDraftTokens: accepted,
			}}}
		}
		j.Handle(now, joining.Start{})
		j.Handle(now, joining.Dispatched{Began: now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}}})
		say(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}})
		say(tokens(0, 2, 1))
		say(tokens(2, c.drafts, c.accepted))
		if len(all) == 0 {
			t.Fatal("nothing came of it")
		}
		ended := false
		for _, action := range all {
			if f, is := action.(joining.Finish); is {
				ended = true
				if f.Stop != "STOP" || f.Usage.GetDraftTokens() != c.wantDrafts || f.Usage.GetAcceptedDraftTokens() != c.wantAccepted {
					t.Errorf("%+v: stop %q, usage %v", c, f.Stop, f.Usage)
				}
			}
		}
		if !ended {
			t.Errorf("%+v: it did not end", c)
		}
	}
}
