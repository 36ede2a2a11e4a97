package joining_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

var (
	reserved = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: &workerv1.Reserved{Ticket: &kvtransferv1.Ticket{}}}}
	admitted = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}}
	paused   = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Paused{Paused: &workerv1.Paused{}}}
	resumed  = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Resumed{Resumed: &workerv1.Resumed{}}}
	ended    = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH}}}
)

// tokenAt is one token of decode.
func tokenAt(offset uint32) *workerv1.DecodeEvent {
	return &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{Offset: offset, TokenIds: []uint32{7}}}}
}

// mayPause draws whether a sequence of an honest worker has to wait for others at
// this place of its script, and inserts what the worker says of it.
func (w *world) mayPause(script []joining.Event, at int, pause ...joining.Event) []joining.Event {
	if rapid.IntRange(0, 3).Draw(w.t, "pauses") > 0 {
		return script
	}
	return slices.Insert(script, at, pause...)
}

// disaggregatedTry is a request that a pair of workers got at second 1000.
func disaggregatedTry() (*joining.Join, time.Time) {
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 3, MaxTokens: 9, Text: silent{}, MaxAttempts: 3, MaxRefusals: 3, Linger: time.Second,
		Silence: routing.Silence{Queue: 30 * time.Second, Prompt: 60 * time.Second, Tokens: 10 * time.Second},
	})
	j.Handle(now, joining.Start{})
	j.Handle(now, joining.Dispatched{Began: now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}, Prefill: routing.Ref{ID: "p", Epoch: 1}}})
	return j, now
}

// A sequence that gave way to others on a worker that works is not taken for one
// whose worker hangs, before the time that a queue and then a prompt may take. And
// a worker that does hang is found.
func TestSilenceOfAPausedSequence(t *testing.T) {
	const queue, prompt, tokens = 30 * time.Second, 60 * time.Second, 10 * time.Second
	for _, test := range []struct {
		name   string
		events []*workerv1.DecodeEvent
		want   time.Duration
	}{
		{"runs", []*workerv1.DecodeEvent{admitted, tokenAt(1)}, tokens},
		{"gave way", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused}, queue},
		{"gave way after it had waited for a block", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused, paused}, queue},
		{"is computed again", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused, resumed}, prompt},
		{"is computed again, and gave way again", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused, resumed, paused}, queue},
		{"goes on", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused, resumed, tokenAt(2)}, tokens},
		{"goes on with the block that it waited for", []*workerv1.DecodeEvent{admitted, tokenAt(1), paused, tokenAt(2)}, tokens},
		{"gave way before it ran", []*workerv1.DecodeEvent{paused}, queue},
		{"runs first after it gave way", []*workerv1.DecodeEvent{paused, admitted}, prompt},
		{"goes on after it gave way before it ran", []*workerv1.DecodeEvent{paused, admitted, tokenAt(1)}, tokens},
	} {
		t.Run(test.name, func(t *testing.T) {
			j, now := disaggregatedTry()
			j.Handle(now, joining.DecodeMessage{Event: reserved})
			j.Handle(now, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{}}})
			j.Handle(now, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{TokenId: 7}}}})
			j.Handle(now, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{}}})
			for _, event := range test.events {
				now = now.Add(5 * time.Second)
				if release := releaseOf(j.Handle(now, joining.DecodeMessage{Event: event})); release != nil {
					t.Fatalf("%v ends the attempt: %v", event, release.Err)
				}
			}
			if due, ok := j.Next(); !ok || due.Sub(now) != test.want {
				t.Errorf("waits %v, want %v", due.Sub(now), test.want)
			}
			if release := releaseOf(j.Handle(now.Add(test.want-1), joining.Tick{})); release != nil {
				t.Errorf("ended too early: %v", release.Err)
			}
			now = now.Add(test.want)
			actions := j.Handle(now, joining.Tick{})
			if doubt, is := actions[0].(joining.CheckProgress); is {
				actions = j.Handle(now, joining.Progressed{Stream: doubt.Stream, At: now.Add(-tokens)})
			}
			if release := releaseOf(actions); release == nil || rpc.Reason(release.Err) != api.ReasonWorkerSilent {
				t.Errorf("the worker that hangs is not found: %v", release)
			}
		})
	}
}

// Pauses that no honest worker speaks of end the attempt.
func TestPausesThatCannotBe(t *testing.T) {
	for name, events := range map[string][]*workerv1.DecodeEvent{
		"without blocks":       {paused},
		"resumes unpaused":     {reserved, admitted, resumed},
		"resumes twice":        {reserved, admitted, paused, resumed, resumed},
		"resumes unadmitted":   {reserved, paused, resumed},
		"resumes after tokens": {reserved, admitted, paused, tokenAt(1), resumed},
	} {
		j, now := disaggregatedTry()
		for i, event := range events {
			release := releaseOf(j.Handle(now, joining.DecodeMessage{Event: event}))
			if last := i == len(events)-1; last != (release != nil) || last && status.Code(release.Err) != codes.Internal {
				t.Errorf("%s: message %d gives %v", name, i, release)
			}
		}
	}
}

// Decode has ended and its stream too, and then prefill says no more than that the
// transfer failed: nobody is left to explain that, so the attempt is over.
func TestNobodyIsLeftToExplain(t *testing.T) {
	j, now := disaggregatedTry()
	for _, event := range []*workerv1.DecodeEvent{reserved, admitted, tokenAt(1), ended} {
		j.Handle(now, joining.DecodeMessage{Event: event})
	}
	err := rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "transfer", 0)
	if release := releaseOf(j.Handle(now, joining.Closed{Stream: joining.Stream{Side: joining.Prefill}, Err: err})); release == nil {
		t.Error("waits for a decode that has said all")
	}
	j.Handle(now, joining.Closed{Stream: joining.Stream{Side: joining.Decode}})
}

// releaseOf is the Release among actions; nil: there is none.
func releaseOf(actions []joining.Action) *joining.Release {
	for _, action := range actions {
		if release, is := action.(joining.Release); is {
			return &release
		}
	}
	return nil
}
