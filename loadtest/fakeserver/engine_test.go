package fakeserver_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

// sink records what it receives, by virtual time since start.
type sink struct {
	start    time.Time
	accepted time.Duration
	at       []time.Duration
	offsets  []int
	fail     error
}

func (s *sink) Accept(string) error {
	s.accepted = time.Since(s.start)
	return nil
}

func (s *sink) Tokens(offset, n int) error {
	s.at, s.offsets = append(s.at, time.Since(s.start)), append(s.offsets, offset, n)
	return s.fail
}

// engine returns an engine on virtual time that ends with the test's bubble.
func engine(t *testing.T, shape fakeserver.Shape, keep bool) *fakeserver.Engine {
	t.Helper()
	e, err := fakeserver.NewEngine(shape, keep, finetimer.Portable())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestEngineSendsWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 200 * ms}, ITL: fakeserver.Delay{Mean: 50 * ms}, TokensPerMessage: 2}, true)
		time.Sleep(time.Second)
		s := &sink{start: time.Now()}
		served, err := e.Serve(t.Context(), 4, s)
		if err != nil || s.accepted != 0 {
			t.Fatalf("%v, accepted at %s", err, s.accepted)
		}
		if !slices.Equal(s.at, []time.Duration{200 * ms, 300 * ms, 350 * ms}) || !slices.Equal(s.offsets, []int{0, 1, 1, 2, 3, 1}) {
			t.Errorf("messages at %v, offsets and tokens %v", s.at, s.offsets)
		}
		if served.Arrived != time.Second || served.First != 1200*ms || served.Second != 1300*ms || served.Last != 1350*ms || served.Tokens != 4 {
			t.Errorf("%+v", served)
		}
		if log := e.Log(); len(log) != 1 || !slices.Equal(log[0].Due, log[0].Sent) || len(log[0].Due) != 3 {
			t.Errorf("log %+v", log)
		}
	})
}

func TestEngineQueuesAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 100 * ms}, Slots: 2, Queue: 3}, false)
		start := time.Now()
		var group sync.WaitGroup
		began := make([]time.Duration, 8)
		refused := make([]bool, 8)
		for i := range began {
			group.Go(func() {
				ctx := t.Context()
				if i == 2 { // the first in the queue gives up
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 50*ms)
					defer cancel()
				}
				served, err := e.Serve(ctx, 1, &sink{start: start})
				began[i], refused[i] = served.Began, errors.Is(err, fakeserver.ErrRefused)
				if i == 2 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("gave up with %v", err)
				}
			})
			synctest.Wait()
		}
		group.Wait()
		if want := []time.Duration{0, 0, 0, 100 * ms, 100 * ms, 0, 0, 0}; !slices.Equal(began, want) {
			t.Errorf("began at %v, want %v", began, want)
		}
		if want := []bool{false, false, false, false, false, true, true, true}; !slices.Equal(refused, want) {
			t.Errorf("refused %v, want %v", refused, want)
		}
	})
}

func TestEngineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: time.Hour}}, false)
		got := make(chan error, 1)
		go func() {
			_, err := e.Serve(t.Context(), 1, &sink{start: time.Now()})
			got <- err
		}()
		synctest.Wait()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-got; !errors.Is(err, fakeserver.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := e.Serve(t.Context(), 1, &sink{}); !errors.Is(err, fakeserver.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestEngineFailures(t *testing.T) {
	broken := errors.New("the client is gone")
	cases := []struct {
		name     string
		shape    fakeserver.Shape
		sink     error
		want     error
		messages int
	}{
		{"refuses by chance", fakeserver.Shape{RejectShare: 1}, nil, fakeserver.ErrRefused, 0},
		{"breaks off", fakeserver.Shape{FailShare: 1}, nil, fakeserver.ErrBroken, 1},
		{"the sink fails", fakeserver.Shape{}, broken, broken, 1},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			s := &sink{start: time.Now(), fail: c.sink}
			if _, err := engine(t, c.shape, false).Serve(t.Context(), 5, s); !errors.Is(err, c.want) || len(s.at) != c.messages {
				t.Errorf("%s: %v after %d messages", c.name, err, len(s.at))
			}
		})
	}
}

// event records its calls until there were enough.
type event struct {
	name  string
	every time.Duration
	left  int
	calls *[]string
	wheel *fakeserver.Wheel
}

func (e *event) Fire() (time.Duration, bool) {
	*e.calls = append(*e.calls, e.name+e.wheel.Now().String())
	e.left--
	return e.wheel.Now() + e.every, e.left > 0
}

func TestWheelCallsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fakeserver.NewWheel(time.Now(), finetimer.Portable(), 0)
		var calls []string
		w.At(30*ms, &event{name: "late", left: 1, calls: &calls, wheel: w})
		w.At(10*ms, &event{name: "often", every: 10 * ms, left: 3, calls: &calls, wheel: w})
		w.At(10*ms, &event{name: "same", left: 1, calls: &calls, wheel: w})
		w.At(-ms, &event{name: "past", left: 1, calls: &calls, wheel: w})
		w.At(time.Hour, &event{name: "never", left: 1, calls: &calls, wheel: w})
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []string{"past0s", "often10ms", "same10ms", "often20ms", "late30ms", "often30ms"}; !slices.Equal(calls, want) {
			t.Errorf("%v, want %v", calls, want)
		}
		for range 2 {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
