package cuda

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Beside a step copies take the time that the rate gives them, over all who copy; between
// steps they take none.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := newPace(LeastCopyRate)
		if err != nil {
			t.Fatal(err)
		}
		const copies = 6
		run := func() time.Duration {
			began := time.Now()
			var all sync.WaitGroup
			for range copies {
				all.Go(func() {
					if err := p.wait(LeastCopyRate/2, nil); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			return time.Since(began)
		}
		if took := run(); took != 0 {
			t.Errorf("between steps copies waited %v", took)
		}
		p.stepBegins()
		p.stepBegins()
		p.stepEnds()
		// The first may go at once; each takes half a second.
		if took := run(); took != (copies-1)*time.Second/2 {
			t.Errorf("beside a step %d copies of half a second waited %v", copies, took)
		}
		time.Sleep(time.Minute) // what was not copied is not made up for
		if took := run(); took != (copies-1)*time.Second/2 {
			t.Errorf("after a rest they waited %v", took)
		}
		p.stepEnds()
		if took := run(); took != 0 {
			t.Errorf("after the steps copies waited %v", took)
		}
	})
}

// Whoever closes pages does not wait for the pace.
func TestPaceStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := newPace(LeastCopyRate)
		if err != nil {
			t.Fatal(err)
		}
		p.stepBegins()
		if err := p.wait(1000*LeastCopyRate, nil); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		began := time.Now()
		if err := p.wait(1, stop); err == nil || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestPaceRefuses(t *testing.T) {
	for _, rate := range []int64{-1, 1, LeastCopyRate - 1} {
		if _, err := newPace(rate); err == nil {
			t.Errorf("a rate of %d bytes a second: no error", rate)
		}
	}
	if p, err := newPace(0); err != nil || p.wait(1<<40, nil) != nil {
		t.Errorf("without a bound: %v", err)
	}
}
