package compare_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/compare"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// counted is a report of so many completed requests, half of them goodput.
func counted(completed int) *report.Report {
	r := of(1, [2]float64{1, 1}, float64(completed)/20, [2]float64{float64(completed) / 20, float64(completed) / 20})
	r.Requests, r.Completed = max(completed, 100), completed
	r.CompletedRPS, r.OutputTokensPerS = float64(completed)/10, float64(completed)
	return r
}

func TestCheck(t *testing.T) {
	full := counted(100)
	interrupted := &report.Report{Schema: report.Schema, Interrupted: true}
	refused := counted(0)
	refused.Rejected, refused.TimedOut = 90, 10
	at := func(rate float64, completed int) *report.Report {
		r := &report.Report{Schema: report.Schema}
		f := counted(completed).Figures
		f.Rate = rate
		r.Runs, r.Search = []report.Figures{f}, &search.Result{}
		return r
	}
	for _, test := range []struct {
		name string
		a, b *report.Report
		want string
	}{
		{"both measured", full, counted(1), ""},
		{"only a schema after", full, &report.Report{Schema: report.Schema}, "AFTER holds no completed requests: nothing to compare"},
		{"interrupted after", full, interrupted, "AFTER holds no completed requests: nothing to compare (the run was interrupted)"},
		{"interrupted before", interrupted, full, "BEFORE holds no completed requests: nothing to compare"},
		{"all refused", full, refused, "AFTER holds no completed requests: nothing to compare (of 100 requests 90 rejected, 10 timed out)"},
		{"searches", at(3, 50), at(3, 40), ""},
		{"a search without figures", at(3, 50), at(3, 0), "AFTER holds no completed requests"},
		{"searches without a rate in common", at(3, 50), at(4, 50), "no rate in common"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := compare.Check(test.a, test.b)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A rate that falls to 0 has no interval and is still significant.
func TestRateThatFellToNothing(t *testing.T) {
	rates := []string{"completed_rps", "output_tokens_per_s", "goodput_rps"}
	nothing := counted(0)
	nothing.RateCI, nothing.Rejected = nil, 100
	cut := counted(0)
	cut.RateCI, cut.Interrupted, cut.Cancelled = nil, true, 100
	for _, test := range []struct {
		name string
		a, b *report.Report
		want compare.Verdict
	}{
		{"all refused", counted(100), nothing, compare.Regression},
		{"so few that it may be chance", counted(3), nothing, compare.Unknown},
		{"ended by the user", counted(100), cut, compare.Unknown},
		{"nothing before either", nothing, nothing, compare.Same},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.a.RateCI = nil
			c := compare.Reports(test.a, test.b, compare.Options{})
			found := 0
			for _, change := range c.Changes {
				for _, rate := range rates {
					if change.Figure != rate {
						continue
					}
					found++
					if change.Verdict != test.want || test.want == compare.Regression && !change.Primary {
						t.Errorf("%s is %s, primary %t", rate, change.Verdict, change.Primary)
					}
				}
			}
			if found != len(rates) || (c.Regressions == len(rates)) != (test.want == compare.Regression) {
				t.Errorf("%d rates, %d regressions", found, c.Regressions)
			}
		})
	}
}

// A latency missing on one side is reported.
func TestLatencyOfOneSide(t *testing.T) {
	a, b := counted(100), counted(100)
	b.TTFT = &measure.Distribution{}
	for _, test := range []struct {
		a, b       *report.Report
		only, want string
	}{{a, b, "a", "after has none"}, {b, a, "b", "before has none"}} {
		c := compare.Reports(test.a, test.b, compare.Options{})
		var got *compare.Change
		for i := range c.Changes {
			if c.Changes[i].Figure == "ttft_ms.p99" {
				got = &c.Changes[i]
			}
		}
		if got == nil || got.Only != test.only || got.Words != test.want || got.Verdict != compare.Missing || got.Percent != nil || c.Regressions != 0 {
			t.Fatalf("%+v", got)
		}
		var table strings.Builder
		if err := c.WriteTable(&table); err != nil || !strings.Contains(table.String(), "1 [1, 1]") || !strings.Contains(table.String(), test.want) {
			t.Errorf("%v\n%s", err, table.String())
		}
	}
}
