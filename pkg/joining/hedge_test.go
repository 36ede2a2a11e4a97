package joining_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// No client can choose an id that is that of another request's second attempt.
func TestHedgeIDIsNoClients(t *testing.T) {
	j := joining.New(joining.Params{ID: "x"})
	if first, second := j.ID(false), j.ID(true); first != "x" || rpc.ValidRequestID(second) {
		t.Errorf("the attempts are %q and %q", first, second)
	}
}

// An attempt that failed while the other went on was not tried again.
func TestFailuresBesideAnotherAttempt(t *testing.T) {
	lost := status.Error(codes.Unavailable, "connection lost")
	r := newRequest(time.Time{}, 9)
	for attempt, id := range []string{"d1", "d2"} {
		if attempt > 0 {
			r.wake(t)
		}
		r.do(joining.Dispatched{Attempt: attempt, Began: r.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: id, Epoch: 1}, HedgeAfter: time.Second}})
	}
	r.do(joining.Closed{Stream: joining.Stream{Attempt: 1, Side: joining.Decode}, Err: lost})
	s := r.do(joining.Closed{Stream: joining.Stream{Attempt: 0, Side: joining.Decode}, Err: lost})
	if s.ask == nil || len(s.ask.Failures) != 2 || !s.ask.Failures[0].Beside || s.ask.Failures[1].Beside {
		t.Errorf("asks with %+v", s.ask)
	}
}

// Only a first token decides which of two attempts was late: not the end of the request.
func TestWhichAttemptWasLate(t *testing.T) {
	for name, c := range map[string]struct {
		event joining.Event
		late  []bool
	}{
		"the first one's token":  {joining.DecodeMessage{Attempt: 0, Event: tokenAt(0)}, []bool{true}},
		"the hedged one's token": {joining.DecodeMessage{Attempt: 1, Event: tokenAt(0)}, []bool{true}},
		"its client is gone":     {joining.Abort{Err: status.Error(codes.Canceled, "gone")}, []bool{false}},
	} {
		r := newRequest(time.Time{}, 9)
		to := func(attempt int, id string) joining.Dispatched {
			return joining.Dispatched{Attempt: attempt, Began: r.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: id, Epoch: 1}, HedgeAfter: time.Second}}
		}
		r.do(to(0, "d1"))
		r.wake(t)
		r.do(to(1, "d2"))
		for attempt := range 2 {
			r.do(joining.DecodeMessage{Attempt: attempt, Event: admitted})
		}
		var late []bool
		for _, action := range r.join.Handle(r.now, c.event) {
			if release, is := action.(joining.Release); is {
				late = append(late, release.Late())
			}
		}
		if len(late) != len(c.late) || late[0] != c.late[0] {
			t.Errorf("%s: late %v, want %v", name, late, c.late)
		}
	}
}
