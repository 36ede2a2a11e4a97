package joining_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// suspicious is a request that may be suspicious of its worker after 2 s between
// tokens, and has to be after 10 s.
func suspicious(r *request) {
	r.attempt++
	r.do(joining.Dispatched{Attempt: r.attempt, Began: r.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}, DecodeSilence: routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 2 * time.Second}}})
	r.decode(admitted)
	r.decode(tokenAt(uint32(r.join.Tokens())))
}

// wake lets time go to the next tick and returns how long that was.
func (r *request) wake(t *testing.T) (time.Duration, said) {
	next, ok := r.join.Next()
	if !ok {
		t.Fatal("nothing is due")
	}
	took := next.Sub(r.now)
	r.now = next
	return took, r.do(joining.Tick{})
}

// A worker that is silent for longer than the policy derived loses the request, unless
// it computes for others; that costs no attempt, and happens twice at most.
func TestSuspicion(t *testing.T) {
	r := newRequest(time.Time{}, 9)
	for range 2 {
		suspicious(r)
		took, s := r.wake(t)
		if took != 2*time.Second || s.doubt == nil || s.doubt.Worker.ID != "d" || s.release != nil {
			t.Fatalf("after %v: %+v", took, s)
		}
		// It has computed a step meanwhile: 2 s from then.
		if s := r.do(joining.Progressed{Stream: s.doubt.Stream, At: r.now.Add(-500 * time.Millisecond)}); s.release != nil {
			t.Fatalf("%+v", s)
		}
		if took, s = r.wake(t); took != 1500*time.Millisecond || s.doubt == nil {
			t.Fatalf("after %v: %+v", took, s)
		}
		s = r.do(joining.Progressed{Stream: s.doubt.Stream, At: r.now.Add(-2 * time.Second)})
		if s.ask == nil || len(s.release.Failures) != 1 || !s.release.Failures[0].Silent || s.release.Failures[0].Gone {
			t.Fatalf("%+v", s)
		}
	}
	// From now on it is what the flags say, three times.
	for i := range 3 {
		suspicious(r)
		took, s := r.wake(t)
		if took != 10*time.Second || s.release == nil || !s.release.Failures[0].Gone || s.release.Failures[0].Lost || (s.finish != nil) != (i == 2) {
			t.Fatalf("after %v: %+v", took, s)
		}
	}
}

// Steps that a worker computes for others excuse it only for as long as the flags say.
func TestStepsForOthersAreNoExcuse(t *testing.T) {
	r := newRequest(time.Time{}, 9)
	suspicious(r)
	began := r.now
	for {
		_, s := r.wake(t)
		if s.release != nil {
			break
		}
		r.do(joining.Progressed{Stream: s.doubt.Stream, At: r.now})
	}
	if took := r.now.Sub(began); took != 10*time.Second {
		t.Errorf("gave it up after %v", took)
	}
}

// A request that waits too long in the queue of a worker that computes for others is refused,
// and nobody is to blame. Where the client has tokens already, it goes on elsewhere instead.
func TestBusyWorkers(t *testing.T) {
	busy := func(r *request) said {
		for {
			took, s := r.wake(t)
			if s.doubt == nil {
				t.Fatalf("after %v: %+v", took, s)
			}
			if s = r.do(joining.Progressed{Stream: s.doubt.Stream, At: r.now.Add(-time.Second)}); s.release != nil {
				return s
			}
		}
	}
	r := newRequest(time.Time{}, 9)
	began := r.now
	r.attempt++
	r.do(joining.Dispatched{Attempt: r.attempt, Began: r.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d", Epoch: 1}, DecodeSilence: routing.Silence{Queue: 5 * time.Second}}})
	s := busy(r)
	if r.now.Sub(began) != 30*time.Second || s.finish == nil || s.release.Failures[0].Gone || !s.release.Failures[0].Busy {
		t.Fatalf("after %v: %+v", r.now.Sub(began), s)
	}
	if refusal, is := errors.AsType[*routing.Refusal](s.finish.Err); !is || refusal.Code != codes.ResourceExhausted || refusal.Reason != api.ReasonQueueTimeout || refusal.RetryAfter <= 0 {
		t.Errorf("ended with %v", s.finish.Err)
	}

	r = newRequest(time.Time{}, 9)
	suspicious(r)
	r.decode(paused)
	if s := busy(r); s.ask == nil || s.finish != nil || !s.release.Failures[0].Busy || s.release.Failures[0].Silent {
		t.Fatalf("%+v", s)
	}
}
