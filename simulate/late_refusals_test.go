package simulate_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Where the time of a token is what limits an overloaded mesh, and steps vary, those that would miss
// it are refused when they come: few are let in, wait, and are refused then.
func TestFewAreRefusedAfterTheyWaited(t *testing.T) {
	c := config(2, 2)
	c.TTFT, c.TPOT = 500*time.Millisecond, 15*time.Millisecond
	for _, w := range c.Workers {
		w.Profile, w.MaxSequences, w.Jitter = latency.Model{BaseMs: 2, PerTokenMs: 0.1, PerContextTokenMs: 0.0003}.Profile(), 64, 0.4
	}
	refused, late := 0, 0
	for _, r := range run(t, c, 300, 20*time.Second, "--prompt-tokens=128", "--output-tokens=64", "--context-tokens=4096", "--seed=5").Records {
		if r.Outcome != record.Rejected {
			continue
		}
		if refused++; r.End-r.Due > 20*time.Millisecond {
			late++
		}
	}
	if refused < 1000 || late > refused/20 {
		t.Errorf("%d of %d refusals came late", late, refused)
	}
	t.Logf("%d of %d refusals came late", late, refused)
}
