package joining_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Hidden states come after the last token: a worker that is lost between the two has not served the
// request, and another one begins anew.
func TestAWorkerIsLostBeforeTheMeanState(t *testing.T) {
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 1, StopTokens: []int32{stopToken}, MeanState: true,
		Text: &words{}, MaxAttempts: 3, MaxRefusals: 4, Linger: time.Second,
		Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
	})
	begins := func(attempt int, token uint32) {
		j.Handle(now, joining.Dispatched{Attempt: attempt, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: uint64(attempt)}}})
		for _, event := range []*workerv1.DecodeEvent{
			{Event: &workerv1.DecodeEvent_Reserved{Reserved: &workerv1.Reserved{}}},
			{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}},
			{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{TokenIds: []uint32{token}}}},
		} {
			j.Handle(now, joining.DecodeMessage{Attempt: attempt, Event: event})
		}
	}
	j.Handle(now, joining.Start{})
	for attempt, token := range []uint32{stopToken, 7} {
		begins(attempt, token)
		var asked *joining.Ask
		for _, action := range j.Handle(now, joining.Closed{Stream: joining.Stream{Attempt: attempt}, Err: status.Error(codes.Unavailable, "connection lost")}) {
			switch a := action.(type) {
			case joining.Ask:
				asked = &a
			case joining.Finish:
				t.Fatalf("finished with %+v", a)
			}
		}
		if asked == nil || !asked.Retry || len(asked.Generated) > 0 {
			t.Fatalf("after %d attempts: %+v", attempt+1, asked)
		}
	}
	begins(2, 7)
	var finish *joining.Finish
	for _, action := range j.Handle(now, joining.DecodeMessage{Attempt: 2, Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{
		Ended: &workerv1.Ended{Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, MeanState: []float32{1, 2}},
	}}}) {
		if f, is := action.(joining.Finish); is {
			finish = &f
		}
	}
	if finish == nil || finish.Err != nil || !slices.Equal(finish.MeanState, []float32{1, 2}) || finish.Usage.GetCompletionTokens() != 1 {
		t.Errorf("finished with %+v", finish)
	}
}
