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
	// barrierPatience is how long a thread waits for the other. After so long that one has no core:
	// the two may even share one, and take turns of milliseconds.
	barrierPatience = time.Millisecond
)

// barrier is one of two threads that spin.
type barrier struct {
	arrived atomic.Int32
	_       [60]byte // a cache line of its own
	turn    atomic.Uint32
	left    atomic.Bool // one has given up
}

// wait reports whether both came.
func (b *barrier) wait() bool {
	turn := b.turn.Load()
	if b.arrived.Add(1) == 2 {
		b.arrived.Store(0)
		b.turn.Add(1)
		return true
	}
	const looks = 1 << 14 // at the other, for each at the clock: far less than the patience
	var since time.Time
	for n := 1; b.turn.Load() == turn; n++ { // it spins
		if n%looks != 0 {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		if b.left.Load() || time.Since(since) > barrierPatience {
			b.left.Store(true)
			return false
		}
	}
	return true
}

// try is the mean of some waits, or what says that other work has the cores.
func (b *barrier) try() float64 {
	var took [2]time.Duration
	var both sync.WaitGroup
	for i := range took {
		both.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if !b.wait() { // both run
				return
			}
			began := time.Now()
			for range barrierRounds {
				if !b.wait() {
					return
				}
			}
			took[i] = time.Since(began)
		})
	}
	both.Wait()
	if b.left.Load() {
		return busyNs
	}
	return float64(took[0].Nanoseconds()) / barrierRounds
}

// barrierNs measures Result.BarrierNs. Where other work takes a core a try ends early, but hardly
// each one.
func barrierNs(ctx context.Context) (best float64) {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	for try := range barrierTries {
		if ctx.Err() != nil {
			return best
		}
		if ns := new(barrier).try(); try == 0 || ns < best {
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
