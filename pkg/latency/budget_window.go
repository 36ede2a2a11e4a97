package latency

import (
	"math"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A window is cut into this many slots, the oldest of which is dropped as a
// whole; one more is being filled.
const windowSlots = 10

// ring holds one T for each of the last slots of a window.
type ring[T any] struct {
	width  time.Duration
	began  time.Time // of slot 0
	newest int64
	slots  [windowSlots + 1]struct {
		number int64
		filled bool
		value  T
	}
}

func (r *ring[T]) init(length time.Duration) { r.width = max(length/windowSlots, 1) }

// turn moves on to the slot of now. Callers may be a little late.
func (r *ring[T]) turn(now time.Time) {
	if r.began.IsZero() {
		r.began = now
	}
	r.newest = max(r.newest, int64(now.Sub(r.began)/r.width))
}

// current is the slot of now; fresh if nothing is in it yet.
func (r *ring[T]) current(now time.Time) (value *T, fresh bool) {
	r.turn(now)
	s := &r.slots[r.newest%int64(len(r.slots))]
	if fresh = !s.filled || s.number != r.newest; fresh {
		s.number, s.filled = r.newest, true
	}
	return &s.value, fresh
}

// each calls visit with what was put into the window.
func (r *ring[T]) each(now time.Time, visit func(value *T, filling bool)) {
	r.turn(now)
	for i := range r.slots {
		if s := &r.slots[i]; s.filled && s.number > r.newest-int64(len(r.slots)) {
			visit(&s.value, s.number == r.newest)
		}
	}
}

// Range and resolution of a window: quantiles are at most 1% too high, or 511 ns if that is
// more, and never too low. The histogram of a slot takes 32 KiB. A Histogram, which has ten
// times the resolution, would take six times that.
const (
	windowLeast  = time.Microsecond
	windowMost   = 24 * time.Hour
	windowDigits = 2
)

// Window is the distribution of the latencies of the last while. It is safe for
// concurrent use, takes bounded memory (350 KiB), and recording allocates nothing
// but one histogram each tenth of its length.
type Window struct {
	mu    sync.Mutex
	ring  ring[windowSlot]
	count int64         // since the beginning
	sum   time.Duration // of those
}

// windowSlot is a part of a window. The histogram of a slot that is no longer
// filled does not change any more.
type windowSlot struct {
	histogram *hdrhistogram.Histogram
	sum, max  time.Duration
}

// NewWindow makes a window that looks back for length, and up to a tenth more.
func NewWindow(length time.Duration) *Window {
	w := new(Window)
	w.ring.init(length)
	return w
}

// Record puts in what was measured at now. A negative latency counts as 0.
func (w *Window) Record(now time.Time, latency time.Duration) {
	latency = max(latency, 0)
	w.mu.Lock()
	defer w.mu.Unlock()
	slot, fresh := w.ring.current(now)
	if fresh {
		// Not reset: a snapshot may still read the old one.
		*slot = windowSlot{histogram: newWindowHistogram()}
	}
	// It cannot fail: the value is in range.
	_ = slot.histogram.RecordValue(int64(min(latency, windowMost)))
	slot.sum += latency
	slot.max = max(slot.max, latency)
	w.count++
	w.sum += latency
}

func newWindowHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(windowLeast), int64(windowMost), windowDigits)
}

// Distribution is what was in a window. It is a copy.
type Distribution struct {
	// Count, Sum and Max are exact and of the window.
	Count    int64
	Sum, Max time.Duration
	// AllCount and AllSum are of everything since the window was made.
	AllCount int64
	AllSum   time.Duration

	histogram *hdrhistogram.Histogram
}

// Snapshot is what the window holds at now. Recording waits for it only while one
// slot is copied.
func (w *Window) Snapshot(now time.Time) *Distribution {
	d := &Distribution{histogram: newWindowHistogram()}
	var parts [windowSlots + 1]*hdrhistogram.Histogram
	n := 0
	w.mu.Lock()
	w.ring.each(now, func(slot *windowSlot, filling bool) {
		parts[n] = slot.histogram
		if filling {
			parts[n] = slot.histogram.Clone()
		}
		n++
		d.Sum += slot.sum
		d.Max = max(d.Max, slot.max)
	})
	d.AllCount, d.AllSum = w.count, w.sum
	w.mu.Unlock()
	for _, part := range parts[:n] {
		d.histogram.Merge(part)
	}
	d.Count = d.histogram.TotalCount()
	return d
}

// Quantile is the latency that a share q of what was measured did not exceed, q
// from 0 to 1; 0 of an empty window. It is at most 1% too high, or 511 ns
// if that is more, and exact for q = 1.
func (d *Distribution) Quantile(q float64) time.Duration {
	if d.Count == 0 {
		return 0
	}
	// The rank is rounded up, by a hair less than what a product of floats may be
	// too high.
	rank := math.Ceil(q*float64(d.Count) - 1e-9)
	if rank >= float64(d.Count) {
		return d.Max
	}
	return min(time.Duration(d.histogram.ValueAtPercentile(100*rank/float64(d.Count))), d.Max)
}

// Counts counts events of some kinds in the last while. It is safe for concurrent
// use.
type Counts struct {
	mu    sync.Mutex
	kinds int
	ring  ring[[]int64]
}

// NewCounts counts events of kinds 0 to kinds-1 in a window like NewWindow's.
func NewCounts(length time.Duration, kinds int) *Counts {
	c := &Counts{kinds: kinds}
	c.ring.init(length)
	return c
}

// Add counts one event of a kind.
func (c *Counts) Add(now time.Time, kind int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slot, fresh := c.ring.current(now)
	if fresh {
		*slot = make([]int64, c.kinds)
	}
	(*slot)[kind]++
}

// Snapshot is how many events of each kind the window holds.
func (c *Counts) Snapshot(now time.Time) []int64 {
	sums := make([]int64, c.kinds)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring.each(now, func(slot *[]int64, _ bool) {
		for kind, n := range *slot {
			sums[kind] += n
		}
	})
	return sums
}
