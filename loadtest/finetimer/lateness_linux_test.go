package finetimer_test

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

// BenchmarkLateness measures the lateness of each way of waiting, idle and with all
// processors busy.
func BenchmarkLateness(b *testing.B) {
	ways := map[string]func() finetimer.Timer{"go": finetimer.Portable, "new": finetimer.New, "spinning": finetimer.NewSpinning, "thread": newThread}
	for _, load := range []string{"idle", "busy"} {
		for _, way := range []string{"go", "new", "spinning", "thread"} {
			b.Run(load+"/"+way, func(b *testing.B) {
				var stop atomic.Bool
				defer stop.Store(true)
				if load == "busy" {
					for range 100 * runtime.GOMAXPROCS(0) {
						go func() {
							for !stop.Load() {
								for began := time.Now(); time.Since(began) < 5*time.Microsecond; {
								}
								runtime.Gosched()
							}
						}()
					}
				}
				timer := ways[way]()
				defer timer.Close()
				late := make([]time.Duration, 0, b.N)
				until := time.Now()
				for b.Loop() {
					until = until.Add(1370 * time.Microsecond)
					timer.Wait(until)
					late = append(late, time.Since(until))
				}
				slices.Sort(late)
				at := func(p float64) float64 { return float64(late[int(p*float64(len(late)-1))]) / 1e3 }
				b.ReportMetric(at(.5), "p50-µs")
				b.ReportMetric(at(.99), "p99-µs")
				b.ReportMetric(at(1), "max-µs")
			})
		}
	}
}

// thread sleeps in clock_nanosleep on a thread of its own.
type thread struct {
	until chan time.Duration
	awake chan struct{}
}

func newThread() finetimer.Timer {
	t := &thread{until: make(chan time.Duration), awake: make(chan struct{}, 1)}
	go func() {
		runtime.LockOSThread()
		for left := range t.until {
			spec := unix.NsecToTimespec(int64(left))
			_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &spec, nil)
			t.awake <- struct{}{}
		}
	}()
	return t
}

func (t *thread) Wait(until time.Time) {
	if left := time.Until(until); left > 0 {
		t.until <- left
		<-t.awake
	}
}
func (t *thread) Wake()        {}
func (t *thread) Close() error { close(t.until); return nil }
