package simulate_test

import (
	"slices"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/simulate"
)

// guessing is a cluster whose decode workers guess so many tokens for a step. A token more costs
// a fiftieth of a step.
func guessing(acceptance float64, maxDrafts int) simulate.Config {
	c := config(1, 1)
	c.Acceptance = acceptance
	for _, w := range c.Workers {
		w.Profile = latency.Model{BaseMs: 10, PerTokenMs: 0.2, PerContextTokenMs: 0.0001}.Profile()
		if w.Role == controlv1.Role_ROLE_DECODE {
			w.MaxDrafts = maxDrafts
		}
	}
	return c
}

// tpot are the times of a token of all requests, sorted, milliseconds.
func tpot(t *testing.T, c simulate.Config) (all []float64) {
	t.Helper()
	for _, r := range run(t, c, 1, 40*time.Second, "--prompt-tokens=100", "--output-tokens=200", "--seed=3").Records {
		if r.Outcome != record.Completed {
			t.Fatalf("%v: %s", r.Outcome, r.Error)
		}
		all = append(all, (r.Last()-r.First()).Seconds()*1e3/199)
	}
	slices.Sort(all)
	return all
}

// TestSpeculation: the time of a token is shorter the more guesses are right. At most it is shorter
// by as many tokens as were guessed, and one. Where hardly any is right, it is hardly longer.
func TestSpeculation(t *testing.T) {
	median := func(acceptance float64, maxDrafts int) float64 {
		all := tpot(t, guessing(acceptance, maxDrafts))
		return all[len(all)/2]
	}
	const drafts = 5
	plain := median(1, 0)
	last := plain * 1.03
	for _, c := range []struct{ acceptance, least float64 }{{0.02, 1 / 1.03}, {0.4, 1.2}, {0.7, 1.6}, {1, 3.5}} {
		ms := median(c.acceptance, drafts)
		if gain := plain / ms; gain < c.least || gain > drafts+1 || ms > last {
			t.Errorf("acceptance %v: %.2f ms a token, and %.2f without: %.2f times, want %v at least", c.acceptance, ms, plain, gain, c.least)
		}
		t.Logf("acceptance %v: %.2f ms a token, %.2f without", c.acceptance, ms, plain)
		last = ms
	}
}

// TestSpeculationRepeats: equal seeds give equal results, with invariants checked after every event, and
// with tokens that depend on all of their context.
func TestSpeculationRepeats(t *testing.T) {
	for _, checked := range []bool{false, true} {
		once := func() (all []record.Record) {
			c := guessing(0.7, 8)
			c.Check, c.CheckContext = checked, checked
			for _, r := range run(t, c, 20, 5*time.Second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-90", "--seed=3").Records {
				if r.Outcome != record.Completed {
					t.Fatalf("%v: %s", r.Outcome, r.Error)
				}
				all = append(all, *r)
			}
			return all
		}
		if diff := cmp.Diff(once(), once(), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
}

// TestUnknownCostOfDrafts: a worker does not guess if its profile does not say what that costs.
func TestUnknownCostOfDrafts(t *testing.T) {
	c := guessing(0.7, 8)
	for _, w := range c.Workers {
		w.Profile.Verify = nil
	}
	if _, err := simulate.New(c); err == nil {
		t.Error("no error")
	}
}
