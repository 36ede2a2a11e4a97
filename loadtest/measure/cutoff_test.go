package measure_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// ended is a request that did not complete, with what had arrived.
func ended(outcome record.Outcome, due, end time.Duration, arrivals ...time.Duration) *record.Record {
	r := one(due)
	for _, at := range arrivals {
		r.Arrivals = append(r.Arrivals, record.Arrival{At: due + at, Tokens: 1})
	}
	r.Outcome, r.End = outcome, end
	return r
}

// Everything that arrived counts, since the slowest responses do not complete.
func TestLatenciesOfWhatDidNotComplete(t *testing.T) {
	run := &record.Run{To: time.Second, Drained: 10 * time.Second, Records: []*record.Record{
		one(0, record.Arrival{At: 100 * ms, Tokens: 1}, record.Arrival{At: 110 * ms, Tokens: 1}),
		ended(record.Cancelled, 0, 10*time.Second, 5*time.Second, 7*time.Second),
		ended(record.TimedOut, 0, 9*time.Second, 4*time.Second),
		ended(record.Failed, 0, 3*time.Second, 2*time.Second, 2500*ms, 2600*ms),
		ended(record.Cancelled, 0, 10*time.Second),
	}}
	s := measure.Summarize(run, measure.Options{})
	for name, got := range map[string]*measure.Distribution{"ttft": s.TTFT, "second token": s.SecondToken, "gaps": s.ITL, "messages": s.ITLMessage, "tpot": s.TPOT, "e2e": s.E2E} {
		want := map[string][2]float64{"ttft": {4, 5000}, "second token": {3, 2000}, "gaps": {4, 2000}, "messages": {4, 2000}, "tpot": {1, 10}, "e2e": {1, 110}}[name]
		if float64(got.Count) != want[0] || *got.Max != want[1] {
			t.Errorf("%s: %d, the longest %v ms, want %v", name, got.Count, *got.Max, want)
		}
	}
}

// 1000 requests, some of which fail, against a p99 bound of 500 ms: it is met with 10
// over the bound and missed with 11.
func TestObjectivesCountWhatDidNotComplete(t *testing.T) {
	second := time.Second
	cut := func(outcome record.Outcome, after time.Duration, arrivals ...time.Duration) func(due time.Duration) *record.Record {
		return func(due time.Duration) *record.Record { return ended(outcome, due, due+after, arrivals...) }
	}
	for _, test := range []struct {
		name, slo   string
		odd         func(due time.Duration) *record.Record
		n           int
		met, missed bool
	}{
		{"all well", "ttft:p99<500ms", nil, 0, true, false},
		{"refused, few", "ttft:p99<500ms", cut(record.Rejected, ms), 9, true, false},
		{"refused", "ttft:p99<500ms", cut(record.Rejected, ms), 11, false, true},
		{"failed after a token in time", "ttft:p99<500ms", cut(record.Failed, second, 10*ms), 11, false, true},
		{"timed out", "e2e:p99<500ms", cut(record.TimedOut, 30*second, 10*ms), 11, false, true},
		{"cut off after waiting too long", "ttft:p99<500ms", cut(record.Cancelled, second), 11, false, true},
		{"cut off after waiting too long, few", "ttft:p99<500ms", cut(record.Cancelled, second), 9, true, false},
		{"cut off after a token in time", "ttft:p99<500ms", cut(record.Cancelled, second, 10*ms), 500, true, false},
		{"cut off soon, few", "ttft:p99<500ms", cut(record.Cancelled, 100*ms), 9, true, false},
		{"cut off soon, enough to decide", "ttft:p99<500ms", cut(record.Cancelled, 100*ms), 11, false, false},
		{"cut off soon: the time of a token", "tpot:p99<500ms", cut(record.Cancelled, second, 10*ms), 100, false, false},
		{"cut off in a gap", "second_token:p99<500ms", cut(record.Cancelled, second, 10*ms), 11, false, true},
		{"not sent", "ttft:p99<500ms", cut(record.Unsent, record.Unset), 11, false, true},
		{"the longest", "e2e:max<500ms", cut(record.Cancelled, second), 1, false, true},
		{"the longest, cut off soon", "e2e:max<500ms", cut(record.Cancelled, 100*ms), 1, false, false},
		{"gaps that never ended", "itl:p99<500ms", cut(record.Cancelled, second, 10*ms), 11, false, true},
		{"cut off after a long gap, few", "itl:p99<500ms", cut(record.Cancelled, 620*ms, 10*ms, 610*ms), 5, true, false},
		{"cut off after a long gap, enough to decide with the next", "itl:p99<500ms", cut(record.Cancelled, 620*ms, 10*ms, 610*ms), 9, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := &record.Run{To: time.Hour, Drained: 2 * time.Hour}
			for i := range 1000 {
				due := time.Duration(i) * time.Second
				if i >= test.n {
					run.Records = append(run.Records, one(due, record.Arrival{At: 20 * ms, Tokens: 1}, record.Arrival{At: 30 * ms, Tokens: 1}))
					continue
				}
				r := test.odd(due)
				if r.Outcome == record.Unsent {
					r.End = record.Unset
				}
				run.Records = append(run.Records, r)
			}
			o := measure.Summarize(run, measure.Options{SLO: slo(t, test.slo)}).Objectives[0]
			if o.Met != test.met || o.Missed != test.missed || (o.Measured != nil) != test.met || (o.Why == "") != test.met {
				t.Errorf("%+v", o)
			}
			if o.CI != nil && o.CI[1] > 1000 {
				t.Errorf("within %v", o.CI)
			}
		})
	}
}

// A missed objective says first how what was served fared, then what was not.
func TestWhyAnObjectiveIsMissed(t *testing.T) {
	for _, c := range []struct {
		slo           string
		served, other int
		want          string
	}{
		{"ttft:p99<10ms", 479, 93, "p99 of those served is 20.02 ms, and 93 of 572 were not served in time"},
		{"ttft:p99<30ms", 479, 93, "p99 of those served is 20.02 ms, but 93 of 572 were not served in time"},
		{"ttft:p99<10ms", 300, 93, "93 of 393 were not served in time"},
		{"ttft:p99<10ms", 0, 400, "400 of 400 were not served in time"},
	} {
		run := &record.Run{To: time.Hour, Drained: 2 * time.Hour}
		for i := range c.served + c.other {
			due := time.Duration(i) * time.Second
			if i < c.served {
				run.Records = append(run.Records, one(due, record.Arrival{At: 20 * ms, Tokens: 1}, record.Arrival{At: 30 * ms, Tokens: 1}))
			} else {
				run.Records = append(run.Records, ended(record.Rejected, due, due+ms))
			}
		}
		if o := measure.Summarize(run, measure.Options{SLO: slo(t, c.slo)}).Objectives[0]; !o.Missed || o.Why != c.want {
			t.Errorf("%s, %d and %d: %+v", c.slo, c.served, c.other, o)
		}
	}
}

// A cut-off request broke its bounds if a gap was already too long.
func TestCutOffRequestsHadBrokenTheirBounds(t *testing.T) {
	for _, test := range []struct {
		slo      string
		arrivals []time.Duration
		end      time.Duration
		bad      bool
	}{
		{"itl:p99<100ms", []time.Duration{10 * ms, 200 * ms, 210 * ms}, 220 * ms, true},
		{"itl:p99<100ms", []time.Duration{10 * ms, 20 * ms}, 500 * ms, true},
		{"itl:p99<100ms", []time.Duration{10 * ms, 20 * ms}, 60 * ms, false},
		{"second_token:p99<100ms", []time.Duration{10 * ms, 200 * ms}, 220 * ms, true},
		{"second_token:p99<100ms", []time.Duration{10 * ms}, 220 * ms, true},
		{"second_token:p99<100ms", nil, 220 * ms, false},
		{"ttft:p99<100ms", []time.Duration{10 * ms}, 10 * time.Second, false},
		{"ttft:p99<100ms", nil, 220 * ms, true},
		{"tpot:p99<100ms", []time.Duration{10 * ms, 5000 * ms}, 6 * time.Second, false},
	} {
		run := &record.Run{To: time.Second, Drained: 10 * time.Second, Records: []*record.Record{
			one(0, record.Arrival{At: 10 * ms, Tokens: 1}), ended(record.Cancelled, 0, test.end, test.arrivals...),
		}}
		want := 1.0
		if test.bad {
			want = 0.5
		}
		if got := measure.Summarize(run, measure.Options{SLO: slo(t, test.slo)}).SLOAttainment; got != want {
			t.Errorf("%s, tokens at %v, cut off at %v: %v attained, want %v", test.slo, test.arrivals, test.end, got, want)
		}
	}
}

// Each code is counted, with the message of its first request.
func TestFailures(t *testing.T) {
	run := &record.Run{To: time.Second, Drained: 2 * time.Second}
	for i, told := range [][2]string{{"INTERNAL", ""}, {"UNAVAILABLE", "no worker"}, {"INTERNAL", "out of memory"}, {"INTERNAL", "gone"}, {"", "what?"}} {
		r := ended(record.Failed, time.Duration(i)*ms, time.Second)
		r.Code, r.Error = told[0], told[1]
		run.Records = append(run.Records, r)
	}
	want := []measure.Failure{{Code: "INTERNAL", Count: 3, Example: "out of memory"}, {Code: "UNAVAILABLE", Count: 1, Example: "no worker"}}
	if got := measure.Summarize(run, measure.Options{}).Failures; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
