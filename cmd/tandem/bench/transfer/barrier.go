package transfer

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// barrierRounds are timed together, about a millisecond's worth, so often.
	barrierRounds = 10_000
	barrierTries  = 20
)

// barrier is one of two threads that spin.
type barrier struct {
	arrived atomic.Int32
	_       [60]byte // a cache line of its own
	turn    atomic.Uint32
}

func (b *barrier) wait() {
	turn := b.turn.Load()
	if b.arrived.Add(1) == 2 {
		b.arrived.Store(0)
		b.turn.Add(1)
		return
	}
	for b.turn.Load() == turn {
		continue // it spins
	}
}

// barrierNs measures Result.BarrierNs. Where other work takes a core it measures that too, but
// hardly in each try.
func barrierNs(ctx context.Context) (best float64) {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	for try := range barrierTries {
		if ctx.Err() != nil {
			return best
		}
		b, took := new(barrier), [2]time.Duration{}
		var both sync.WaitGroup
		for i := range took {
			both.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				b.wait() // both run
				began := time.Now()
				for range barrierRounds {
					b.wait()
				}
				took[i] = time.Since(began)
			})
		}
		both.Wait()
		if ns := float64(took[0].Nanoseconds()) / barrierRounds; try == 0 || ns < best {
			best = ns
		}
	}
	return best
}

// From betweenNs on, two cores are taken to be on two complexes. From busyNs on, other work has
// one of them.
const (
	betweenNs = 150
	busyNs    = 600
)

// Machine says what BarrierNs means, for people.
func (r *Result) Machine() string {
	switch {
	case r.BarrierNs == 0:
		return "one core"
	case r.BarrierNs < betweenNs:
		return "the cores share a complex"
	case r.BarrierNs >= busyNs:
		return "other work has the cores, so it says nothing of their place"
	default:
		return "the cores are on two complexes"
	}
}
