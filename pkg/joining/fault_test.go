package joining_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// silent is a Text without text.
type silent struct{}

func (silent) Push(int32) (text, stop string) { return "", "" }
func (silent) Flush() (text, stop string)     { return "", "" }

// aggregatedTry is a request that one decode worker got at second 1000.
func aggregatedTry(maxTokens int) (*joining.Join, time.Time) {
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 3, MaxTokens: maxTokens, Text: silent{}, MaxAttempts: 3, MaxRefusals: 3, Linger: time.Second,
	})
	j.Handle(now, joining.Start{})
	j.Handle(now, joining.Dispatched{Began: now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}}})
	return j, now
}

// Admitted that comes late, together with the token, does not make the prefill
// look like a wait for the reservation.
func TestStagesHoldWhatWasComputedInThem(t *testing.T) {
	j, now := aggregatedTry(1)
	late := now.Add(20 * time.Millisecond)
	say := func(event *workerv1.DecodeEvent) []joining.Action {
		return j.Handle(late, joining.DecodeMessage{Event: event})
	}
	say(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}})
	actions := say(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{TokenIds: []uint32{7}}}})
	actions = append(actions, say(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{
		Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, PrefillComputeNs: int64(15 * time.Millisecond),
	}}})...)
	for _, action := range actions {
		if f, is := action.(joining.Finish); is {
			if x := f.Timings; x.GetPrefillNs() != int64(15*time.Millisecond) || x.GetReserveNs() != int64(5*time.Millisecond) || x.GetTotalNs() != int64(20*time.Millisecond) {
				t.Errorf("timings %v", x)
			}
			return
		}
	}
	t.Error("the request did not end")
}

// The wait for a connection to the decode worker is part of the reservation, not of prefill.
func TestOpeningATransferIsNoPrefill(t *testing.T) {
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 3, MaxTokens: 1, Text: silent{}, MaxAttempts: 3, MaxRefusals: 3, Linger: time.Second,
	})
	var finish *joining.Finish
	after := func(ms int, event joining.Event) {
		for _, action := range j.Handle(now.Add(time.Duration(ms)*time.Millisecond), event) {
			if f, is := action.(joining.Finish); is {
				finish = &f
			}
		}
	}
	after(0, joining.Start{})
	after(0, joining.Dispatched{Began: now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}, Prefill: routing.Ref{ID: "p", Epoch: 1}}})
	after(1, joining.DecodeMessage{Event: reserved})
	after(501, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{QueueNs: int64(100 * time.Millisecond)}}}})
	after(511, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{TokenId: 7, Last: true}}}})
	if finish == nil {
		t.Fatal("the request did not end")
	}
	x := finish.Timings
	for stage, took := range map[string][2]int64{"reserve": {x.GetReserveNs(), 401}, "queue": {x.GetQueueNs(), 100}, "prefill": {x.GetPrefillNs(), 10}, "total": {x.GetTotalNs(), 511}} {
		if took[0] != took[1]*int64(time.Millisecond) {
			t.Errorf("%s took %v, want %d ms", stage, time.Duration(took[0]), took[1])
		}
	}
}

// A prefill worker that dies after the first token may have sent all KV: whether the attempt goes on is
// for decode to say, within a while.
func TestPrefillDiesAfterTheFirstToken(t *testing.T) {
	lost := status.Error(codes.Unavailable, "connection lost")
	for name, c := range map[string]struct {
		then  func(j *joining.Join, now time.Time) []joining.Action
		fails bool
	}{
		"decode has the KV": {func(j *joining.Join, now time.Time) []joining.Action {
			actions := j.Handle(now, joining.DecodeMessage{Event: admitted})
			return append(actions, j.Handle(now.Add(2*time.Second), joining.DecodeMessage{Event: tokenAt(1)})...)
		}, false},
		"decode lost the transfer": {func(j *joining.Join, now time.Time) []joining.Action {
			return j.Handle(now, joining.Closed{Err: rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "transfer", 0)})
		}, true},
		"decode says nothing": {func(j *joining.Join, now time.Time) []joining.Action {
			return j.Handle(now.Add(time.Second), joining.Tick{})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			j, now := disaggregatedTry()
			j.Handle(now, joining.DecodeMessage{Event: reserved})
			j.Handle(now, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{}}})
			j.Handle(now, joining.PrefillMessage{Event: &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{TokenId: 7}}}})
			if release := releaseOf(j.Handle(now, joining.Closed{Stream: joining.Stream{Side: joining.Prefill}, Err: lost})); release != nil {
				t.Fatalf("at once: %+v", release)
			}
			release := releaseOf(c.then(j, now))
			if (release != nil) != c.fails {
				t.Fatalf("%+v", release)
			}
			if c.fails && (len(release.Failures) != 1 || release.Failures[0].Worker.ID != "p" || !release.Failures[0].Gone) {
				t.Errorf("blames %+v", release.Failures)
			}
		})
	}
}
