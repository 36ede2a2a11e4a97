package measure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// The verdicts on queues of known capacity, over many runs of each. 600 requests say
// little about a queue close to its capacity, so there the test bounds only the worse of
// the two errors. -v prints all rates.
func TestVerdictErrorRates(t *testing.T) {
	const runs = 200
	ms, second := time.Millisecond, time.Second
	for _, test := range []struct {
		name string
		queue
		// The least share of runs with each verdict, and the largest that may be overloaded.
		stable, backlogged, overloaded, mostOverloaded float64
	}{
		{"M/D/1 at 50%", queue{rate: 10, places: 1, service: 50 * ms, seconds: 60}, 0.98, 0, 0, 0},
		{"M/D/1 at 80%", queue{rate: 10, places: 1, service: 80 * ms, seconds: 60}, 0.96, 0, 0, 0.01},
		{"M/D/1 at 90%", queue{rate: 10, places: 1, service: 90 * ms, seconds: 60}, 0.92, 0, 0, 0.03},
		{"M/D/1 at 95%", queue{rate: 10, places: 1, service: 95 * ms, seconds: 60}, 0.8, 0, 0, 0.1},
		{"M/D/1 at 100%", queue{rate: 10, places: 1, service: 100 * ms, seconds: 60}, 0, 0, 0, 0.4},
		{"M/D/1 at 110%", queue{rate: 10, places: 1, service: 110 * ms, seconds: 60}, 0, 0, 0.65, 1},
		{"M/D/1 at 120%", queue{rate: 10, places: 1, service: 120 * ms, seconds: 60}, 0, 0, 0.95, 1},
		{"M/D/1 at 150%", queue{rate: 10, places: 1, service: 150 * ms, seconds: 60}, 0, 0, 0.99, 1},
		{"M/D/1 at 90%, 6000 requests", queue{rate: 100, places: 1, service: 9 * ms, seconds: 60}, 0.98, 0, 0, 0.01},
		{"M/D/1 at 105%, 6000 requests", queue{rate: 100, places: 1, service: 10500 * time.Microsecond, seconds: 60}, 0, 0, 0.9, 1},
		{"M/D/1 at 110%, 6000 requests", queue{rate: 100, places: 1, service: 11 * ms, seconds: 60}, 0, 0, 0.99, 1},
		{"M/M/16 at 80%, 2 s each", queue{rate: 6.4, places: 16, service: 2 * second, seconds: 60, exponential: true}, 0.93, 0, 0, 0.03},
		{"M/D/64 at 80%, 5 s each", queue{rate: 10, places: 64, service: 5 * second, seconds: 60}, 0.95, 0, 0, 0.02},
		{"M/D/64 at 120%, 5 s each", queue{rate: 15, places: 64, service: 5 * second, seconds: 60}, 0, 0, 0.93, 1},
		// On any server, more is in flight late in a ramp.
		{"a ramp to 80%", queue{rate: 10, places: 16, service: 1300 * ms, seconds: 60, ramp: [2]float64{0.1, 1}}, 0.95, 0, 0, 0.01},
		{"a ramp to 200%", queue{rate: 20, places: 10, service: second, seconds: 60, ramp: [2]float64{0.1, 1}}, 0, 0.5, 0, 1},
		// Bursts from which the server recovers are not overload.
		{"a freeze of 2 s", queue{rate: 20, places: 4, service: 100 * ms, seconds: 60, frozen: [2]time.Duration{30 * second, 32 * second}}, 0.95, 0, 0, 0.01},
		{"a freeze at the start", queue{rate: 20, places: 4, service: 100 * ms, seconds: 60, frozen: [2]time.Duration{8 * second, 10 * second}}, 0.95, 0, 0, 0.01},
		{"a burst", queue{rate: 10, places: 1, service: 50 * ms, seconds: 60, burst: 100, burstAt: 20 * second}, 0.95, 0, 0, 0.01},
		{"a freeze that does not end", queue{rate: 20, places: 4, service: 100 * ms, seconds: 60, frozen: [2]time.Duration{56 * second, 62 * second}}, 0, 0.95, 0, 0.02},
		{"a server that refuses", queue{rate: 20, places: 1, service: 100 * ms, seconds: 60, queueLimit: 5}, 0, 0, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			share := map[measure.Verdict]float64{}
			var reason string
			for seed := range uint64(runs) {
				s := measure.Judge(test.run(seed))
				share[s.Verdict] += 1.0 / runs
				if seed == 0 || s.Verdict == measure.None {
					reason = s.Reason
				}
			}
			t.Logf("stable %.1f%%, backlogged %.1f%%, overloaded %.1f%%: %s", 100*share[measure.Stable],
				100*share[measure.Backlogged], 100*share[measure.Overloaded], reason)
			if share[measure.None] > 0 {
				t.Errorf("no verdict: %s", reason)
			}
			for verdict, least := range map[measure.Verdict]float64{
				measure.Stable: test.stable, measure.Backlogged: test.backlogged, measure.Overloaded: test.overloaded,
			} {
				if share[verdict] < least-1e-9 {
					t.Errorf("%s in %.1f%% of the runs, want %.0f%%", verdict, 100*share[verdict], 100*least)
				}
			}
			if share[measure.Overloaded] > test.mostOverloaded+1e-9 {
				t.Errorf("overloaded in %.1f%% of the runs, at most %.0f%%", 100*share[measure.Overloaded], 100*test.mostOverloaded)
			}
		})
	}
}

// With too few data, or if the client was the bottleneck, there is no verdict, and the
// reason says what to do.
func TestNoVerdict(t *testing.T) {
	calm := queue{rate: 10, places: 1, service: 50 * time.Millisecond, seconds: 60}
	short, few, slow := calm, calm, calm
	short.seconds, short.rate = 3, 20
	few.rate, few.seconds = 0.5, 20
	slow.service, slow.places = 40*time.Second, 1000
	for _, test := range []struct {
		name   string
		run    *record.Run
		reason string
	}{
		{"nothing", &record.Run{}, "no request was due"},
		{"a short window", short.run(1), "too short to see a trend; let it last at least"},
		{"few requests", few.run(1), "too few requests to see a trend: 8 of the 20"},
		{"long requests", slow.run(1), "is too short for requests that take 40s"},
		{"the client", func() *record.Run {
			run := calm.run(1)
			run.Client.Bottleneck = "it was 20 ms late"
			return run
		}(), "the client was the bottleneck: it was 20 ms late"},
		{"closed loop", func() *record.Run {
			run := calm.run(1)
			run.Concurrency = 8
			return run
		}(), "closed loop"},
		{"interrupted", func() *record.Run {
			run := calm.run(1)
			run.Interrupted = true
			return run
		}(), "; until then the backlog changed by "},
		{"wrong requests", func() *record.Run {
			run := calm.run(1)
			for i, r := range run.Records {
				if i%10 == 0 {
					r.Outcome, r.Code = record.Failed, "INVALID_ARGUMENT"
				}
			}
			return run
		}(), "were refused as invalid (INVALID_ARGUMENT)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := measure.Summarize(test.run, measure.Options{})
			if s.Verdict != measure.None || !strings.Contains(s.Reason, test.reason) {
				t.Errorf("%s: %q, want %q", s.Verdict, s.Reason, test.reason)
			}
		})
	}
}

// A backlog that falls is not called level.
func TestAFallingBacklog(t *testing.T) {
	falls := queue{rate: 10, places: 3, service: time.Second, seconds: 60, burst: 600, burstAt: 0}
	falls.service = 140 * time.Millisecond
	for name, c := range map[string]struct {
		queue queue
		want  string
	}{
		"falling": {falls, "the backlog fell: -"},
		"level":   {queue{rate: 10, places: 1, service: 50 * time.Millisecond, seconds: 60}, "the backlog stayed level: "},
	} {
		if s := measure.Judge(c.queue.run(1)); s.Verdict != measure.Stable || !strings.HasPrefix(s.Reason, c.want) {
			t.Errorf("%s: %s: %s", name, s.Verdict, s.Reason)
		}
	}
}

// A report names one length for a window that is too short.
func TestTooShortAWindowHasOneRemedy(t *testing.T) {
	r := queue{rate: 5, places: 1000, service: 14600 * time.Millisecond, seconds: 5}
	s := measure.Summarize(r.run(1), measure.Options{})
	if want := fmt.Sprintf("let it last at least %.0f s", s.WindowNeeded().Seconds()); !strings.HasSuffix(s.Reason, want) || s.WindowNeeded() != 59*time.Second {
		t.Errorf("%q, want %q", s.Reason, want)
	}
}

// A server that refuses many is overloaded, whatever a few others are refused for. Where only the workload is
// at fault, the reason names its fault.
func TestInvalidRequestsAmongOthers(t *testing.T) {
	const refused, invalid = "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"
	for _, test := range []struct {
		name    string
		codes   map[string]int // of 600 requests
		verdict measure.Verdict
		reason  string
	}{
		{"many refused, some invalid", map[string]int{refused: 300, invalid: 12}, measure.Overloaded, "50.0% of the requests were not served"},
		{"some invalid, a few refused", map[string]int{refused: 5, invalid: 30}, measure.None, "5.0% of the requests were refused as invalid (INVALID_ARGUMENT)"},
		{"invalid in two ways, fewer than those refused", map[string]int{refused: 5, invalid: 4, "NOT_FOUND": 3}, measure.None, "1.2% of the requests were refused as invalid (INVALID_ARGUMENT)"},
	} {
		run := &record.Run{To: time.Minute, Drained: time.Minute}
		for i := range 600 {
			due := time.Duration(i) * 100 * ms
			run.Records = append(run.Records, one(due, record.Arrival{At: 10 * ms, Tokens: 1}))
		}
		at := 0
		for code, n := range test.codes {
			for range n {
				r := ended(record.Failed, run.Records[at].Due, run.Records[at].Due+ms)
				if r.Code = code; code == refused {
					r.Outcome = record.Rejected
				}
				run.Records[at], at = r, at+1
			}
		}
		if s := measure.Summarize(run, measure.Options{}); s.Verdict != test.verdict || !strings.HasPrefix(s.Reason, test.reason) {
			t.Errorf("%s: %s: %s", test.name, s.Verdict, s.Reason)
		}
	}
}

// Failures of the server are overload even if nothing waits.
func TestFailuresAreOverload(t *testing.T) {
	run := queue{rate: 10, places: 1, service: 50 * time.Millisecond, seconds: 60}.run(1)
	for i, r := range run.Records {
		if i%20 == 0 {
			r.Outcome, r.Code = record.Failed, "INTERNAL"
		}
	}
	if s := measure.Summarize(run, measure.Options{}); s.Verdict != measure.Overloaded || !strings.Contains(s.Reason, "were not served") {
		t.Errorf("%s: %s", s.Verdict, s.Reason)
	}
}
