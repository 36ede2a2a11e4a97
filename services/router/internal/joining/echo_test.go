package joining_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// When one worker fails, the other one's word that the transfer broke may come
// first. It is the cause that counts.
func TestTheCauseCounts(t *testing.T) {
	p, d := fleet.Ref{ID: "p", Epoch: 1}, fleet.Ref{ID: "d", Epoch: 2}
	broke := rpc.Error(codes.Unavailable, worker.ReasonTransferFailed, "the transfer broke", 0)
	full := rpc.Error(codes.ResourceExhausted, worker.ReasonQueueFull, "full", time.Second)
	died := status.Error(codes.Unavailable, "connection lost")
	both := []fleet.Failure{{Worker: d}, {Worker: p}}
	for _, test := range []struct {
		name  string
		first joining.Closed
		then  error // how the other stream ends; nil: it does not, in time
		want  []fleet.Failure
	}{
		{"prefill is full", closed(joining.Decode, broke), full, []fleet.Failure{{Worker: p, Busy: true, RetryAfter: time.Second}}},
		{"prefill died", closed(joining.Decode, broke), died, []fleet.Failure{{Worker: p, Gone: true}}},
		{"decode died", closed(joining.Prefill, broke), died, []fleet.Failure{{Worker: d, Gone: true}}},
		{"decode is full", closed(joining.Prefill, broke), full, []fleet.Failure{{Worker: d, Busy: true, RetryAfter: time.Second}}},
		{"the transfer broke", closed(joining.Decode, broke), broke, both},
		{"prefill says nothing", closed(joining.Decode, broke), nil, both},
		{"prefill ended first", closed(joining.Decode, rpc.Error(codes.Canceled, worker.ReasonFinishedAtPrefill, "", 0)), full,
			[]fleet.Failure{{Worker: p, Busy: true, RetryAfter: time.Second}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			j := joining.New(joining.Params{
				Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 5, Text: &words{}, MaxAttempts: 3, MaxRefusals: 4, Linger: time.Second,
				Silence: joining.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
			})
			j.Handle(now, joining.Start{})
			j.Handle(now, joining.Dispatched{Mode: inferencev1.Mode_MODE_DISAGGREGATED, Decode: d, Prefill: p})
			j.Handle(now, joining.DecodeMessage{Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{
				Reserved: &workerv1.Reserved{Ticket: &kvtransferv1.Ticket{}},
			}}})
			if got := released(j.Handle(now, test.first)); got != nil {
				t.Fatalf("did not wait for the other one: %v", got)
			}
			var actions []joining.Action
			if test.then != nil {
				actions = j.Handle(now, closed(1-test.first.Stream.Side, test.then))
			} else {
				next, ok := j.Next()
				if !ok || next.Sub(now) > time.Second {
					t.Fatalf("waits until %v", next)
				}
				actions = j.Handle(next, joining.Tick{})
			}
			if got := released(actions); !slices.Equal(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func closed(side joining.Side, err error) joining.Closed {
	return joining.Closed{Stream: joining.Stream{Side: side}, Err: err}
}

func released(actions []joining.Action) []fleet.Failure {
	for _, action := range actions {
		if r, ok := action.(joining.Release); ok {
			return r.Failures
		}
	}
	return nil
}
