package joining_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// When one worker fails, the other one's word that the transfer broke may come
// first. It is the cause that counts.
func TestTheCauseCounts(t *testing.T) {
	p, d := routing.Ref{ID: "p", Epoch: 1}, routing.Ref{ID: "d", Epoch: 2}
	broke := rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "the transfer broke", 0)
	apart := rpc.Error(codes.Unavailable, api.ReasonTransferUnreachable, "nobody there", 0)
	full := rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, "full", time.Second)
	died := status.Error(codes.Unavailable, "connection lost")
	both := []routing.Failure{{Worker: d}, {Worker: p}}
	pair := []routing.Failure{{Worker: p, Unreached: d, Why: "nobody there"}}
	for _, test := range []struct {
		name  string
		first joining.Closed
		then  error // how the other stream ends; nil: it does not, in time
		want  []routing.Failure
	}{
		{"prefill is full", closed(joining.Decode, broke), full, []routing.Failure{{Worker: p, Busy: true, RetryAfter: time.Second}}},
		{"prefill died", closed(joining.Decode, broke), died, []routing.Failure{{Worker: p, Gone: true, Lost: true}}},
		{"decode died", closed(joining.Prefill, broke), died, []routing.Failure{{Worker: d, Gone: true, Lost: true}}},
		{"decode is full", closed(joining.Prefill, broke), full, []routing.Failure{{Worker: d, Busy: true, RetryAfter: time.Second}}},
		{"the transfer broke", closed(joining.Decode, broke), broke, both},
		{"prefill says nothing", closed(joining.Decode, broke), nil, both},
		{"no way to decode", closed(joining.Prefill, apart), nil, pair},
		{"no way to decode, which gave up", closed(joining.Prefill, apart), broke, pair},
		{"no way to decode, which died", closed(joining.Prefill, apart), died, []routing.Failure{{Worker: d, Gone: true, Lost: true}}},
		{"prefill ended first", closed(joining.Decode, rpc.Error(codes.Canceled, api.ReasonFinishedAtPrefill, "", 0)), full,
			[]routing.Failure{{Worker: p, Busy: true, RetryAfter: time.Second}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			j := joining.New(joining.Params{
				Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 5, Text: &words{}, MaxAttempts: 3, MaxRefusals: 4, Linger: time.Second,
				Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
			})
			j.Handle(now, joining.Start{})
			j.Handle(now, joining.Dispatched{Dispatch: routing.Dispatch{Decode: d, Prefill: p}})
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

// Of a pair that cannot reach each other the last attempt says so; there is no other
// pair to be had.
func TestUnreachableToTheEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 5, Text: &words{}, MaxAttempts: 2, MaxRefusals: 4, Linger: time.Second,
		Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
	})
	j.Handle(now, joining.Start{})
	apart := rpc.Error(codes.Unavailable, api.ReasonTransferUnreachable, "nobody there", 0)
	for attempt := range 2 {
		j.Handle(now, joining.Dispatched{Attempt: attempt, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 2}, Prefill: routing.Ref{ID: "p", Epoch: 1}}})
		j.Handle(now, joining.DecodeMessage{Attempt: attempt, Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{
			Reserved: &workerv1.Reserved{Ticket: &kvtransferv1.Ticket{}},
		}}})
		j.Handle(now, joining.Closed{Stream: joining.Stream{Attempt: attempt, Side: joining.Prefill}, Err: apart})
		next, ok := j.Next()
		if !ok || next.Sub(now) > 100*time.Millisecond {
			t.Fatalf("the client waits until %v", next)
		}
		var finish *joining.Finish
		for _, action := range j.Handle(next, joining.Tick{}) {
			if f, is := action.(joining.Finish); is {
				finish = &f
			}
		}
		if (finish != nil) != (attempt == 1) {
			t.Fatalf("after %d attempts: %+v", attempt+1, finish)
		}
		if finish != nil {
			refusal, _ := errors.AsType[*routing.Refusal](finish.Err)
			if refusal == nil || refusal.Reason != api.ReasonKVUnreachable || !strings.Contains(refusal.Message, "p to d") {
				t.Errorf("ended with %v", finish.Err)
			}
		}
		now = next
	}
}

func closed(side joining.Side, err error) joining.Closed {
	return joining.Closed{Stream: joining.Stream{Side: side}, Err: err}
}

func released(actions []joining.Action) []routing.Failure {
	for _, action := range actions {
		if r, ok := action.(joining.Release); ok {
			return r.Failures
		}
	}
	return nil
}
