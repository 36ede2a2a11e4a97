package joining_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A request that has to run in a version asks for that from the first attempt on.
func TestFirstAskHasTheVersion(t *testing.T) {
	for _, version := range []routing.Version{{}, {Digest: "m", Class: "c"}} {
		j := joining.New(joining.Params{MaxTokens: 1, Version: version})
		actions := j.Handle(time.Unix(1000, 0), joining.Start{})
		if len(actions) != 1 || actions[0].(joining.Ask).Version != version {
			t.Errorf("of version %v: %+v", version, actions)
		}
	}
}

// However the streams interleave and whoever dies: tokens in order, one end,
// nothing left open, every attempt given back once.
func TestOneEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.send(joining.Start{})
		for steps := 0; !w.join.Done(); steps++ {
			if steps > 2000 {
				t.Fatal("it does not end")
			}
			w.step()
		}
		if w.finish == nil {
			t.Fatal("no Finish")
		}
		for id, s := range w.open {
			if !s.done {
				t.Fatalf("stream %v is open", id)
			}
		}
		for attempt := range w.attempts {
			if w.released[attempt] != 1 {
				t.Fatalf("attempt %d was given back %d times", attempt, w.released[attempt])
			}
		}
		// Nothing wakes it up again.
		for _, event := range []joining.Event{
			joining.Start{}, joining.Tick{}, joining.Abort{Err: status.Error(codes.Canceled, "late")},
			joining.Closed{Stream: joining.Stream{}}, joining.Refused{},
		} {
			if actions := w.join.Handle(w.now, event); len(actions) != 0 {
				t.Fatalf("%T after the end gives %v", event, actions)
			}
		}
	})
}

// Workers that never fail give the whole text in one attempt.
func TestNoFailureNoRetry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.send(joining.Start{})
		for !w.join.Done() {
			switch {
			case w.asked != nil:
				w.dispatch()
			default:
				var ready []joining.Stream
				for _, id := range w.streams() {
					if s := w.open[id]; len(s.script) == 0 || !w.held(id, s) {
						ready = append(ready, id)
					}
				}
				if len(ready) == 0 {
					t.Fatal("stuck")
				}
				id := rapid.SampledFrom(ready).Draw(t, "stream")
				if s := w.open[id]; len(s.script) == 0 {
					w.close(id, s, s.end)
				} else {
					w.speak(id, s)
				}
			}
		}
		if w.finish.Err != nil || len(w.attempts) != 1 {
			t.Fatalf("%d attempts, %v", len(w.attempts), w.finish.Err)
		}
	})
}
