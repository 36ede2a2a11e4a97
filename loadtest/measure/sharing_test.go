package measure_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// sharing is a processor-sharing server: it starts every request at once and shares
// capacity (requests per second) evenly, but serves none faster than alone. Requests
// still running drain after the last due time are cancelled.
type sharing struct {
	rate, capacity float64
	alone, drain   time.Duration
	seconds        float64
	exponential    bool
}

func (s sharing) run(seed uint64) *record.Run {
	r := rand.New(rand.NewPCG(seed, 12))
	const step = 10 * time.Millisecond
	type job struct {
		*record.Record
		left float64 // work; the mean is 1
	}
	run := &record.Run{Offered: s.rate, To: time.Duration(s.seconds * float64(time.Second))}
	over := run.To + s.drain
	var running []job
	next := time.Duration(r.ExpFloat64() / s.rate * float64(time.Second))
	ended := 0
	for now := time.Duration(0); ; now += step {
		for ; next <= now && next <= run.To; next += time.Duration(r.ExpFloat64() / s.rate * float64(time.Second)) {
			one := &record.Record{
				Index: len(run.Records), Due: next, Dispatched: next, Sent: next, Admitted: next,
				Outcome: record.Cancelled, End: over, OutputTokens: 1,
			}
			run.Records = append(run.Records, one)
			work := 1.0
			if s.exponential {
				work = r.ExpFloat64()
			}
			running = append(running, job{one, work})
		}
		// Each runs at its own speed until the total exceeds the capacity.
		share := step.Seconds() * min(1/s.alone.Seconds(), s.capacity/max(float64(len(running)), 1))
		kept := running[:0]
		for _, j := range running {
			if j.left -= share; j.left > 0 {
				kept = append(kept, j)
				continue
			}
			j.Outcome, j.End = record.Completed, now
			j.Arrivals = []record.Arrival{{At: now, Tokens: 1}}
			ended++
		}
		running = kept
		if now%(250*time.Millisecond) == 0 {
			run.Samples = append(run.Samples, record.Sample{At: now, Due: len(run.Records), Ended: ended})
		}
		if now >= over || now > run.To && len(running) == 0 {
			run.Drained = now
			return run
		}
	}
}

// A time-sharing server is overloaded too, even if it completes so few requests that no
// trend is visible. Long or highly variable requests alone are not overload.
func TestVerdictOfAServerThatSlowsDown(t *testing.T) {
	const runs = 20
	second := time.Second
	for _, test := range []struct {
		name string
		sharing
		want  measure.Verdict
		least float64
		never measure.Verdict
	}{
		{"at 50%", sharing{rate: 10, capacity: 20, alone: second, drain: 30 * second, seconds: 40}, measure.Stable, 0.95, measure.Overloaded},
		{"at 200%", sharing{rate: 20, capacity: 10, alone: second, drain: 30 * second, seconds: 40}, measure.Overloaded, 0.95, measure.None},
		{"at 400%", sharing{rate: 40, capacity: 10, alone: second, drain: 30 * second, seconds: 40}, measure.Overloaded, 1, measure.None},
		{"at 500%", sharing{rate: 50, capacity: 10, alone: second, drain: 30 * second, seconds: 40}, measure.Overloaded, 0.9, measure.Stable},
		{"at 700%, unlike lengths", sharing{rate: 70, capacity: 10, alone: second, drain: 30 * second, seconds: 40, exponential: true}, measure.Overloaded, 0.85, measure.Stable},
		{"long requests at 20%", sharing{rate: 10, capacity: 50, alone: 25 * second, drain: 10 * second, seconds: 40}, measure.None, 1, measure.Overloaded},
		{"unlike lengths at 50%", sharing{rate: 10, capacity: 20, alone: 4 * second, drain: 10 * second, seconds: 60, exponential: true}, measure.Stable, 0.8, measure.None},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			share := map[measure.Verdict]float64{}
			var reason string
			for seed := range uint64(runs) {
				s := measure.Judge(test.run(seed))
				share[s.Verdict] += 1.0 / runs
				if s.Verdict != test.want || reason == "" {
					reason = s.Reason
				}
			}
			t.Logf("%v: %s", share, reason)
			if share[test.want] < test.least-1e-9 || share[test.never] > 0.05 {
				t.Errorf("%v: %s", share, reason)
			}
		})
	}
}

// Requests that an interruption cut off are not failures.
func TestAnInterruptedRunIsNotOverloaded(t *testing.T) {
	run := queue{rate: 10, places: 1, service: 50 * time.Millisecond, seconds: 60}.run(1)
	for i, r := range run.Records {
		if i > len(run.Records)*9/10 {
			r.Outcome = record.Cancelled
		}
	}
	run.Drained = run.To + 30*time.Second
	if s := measure.Summarize(run, measure.Options{}); s.Verdict != measure.Overloaded {
		t.Errorf("%s: %s", s.Verdict, s.Reason)
	}
	run.Interrupted = true
	if s := measure.Summarize(run, measure.Options{}); s.Verdict == measure.Overloaded {
		t.Errorf("interrupted: %s: %s", s.Verdict, s.Reason)
	}
}
