package evidence_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
)

// A search may end a run when it is certain what it would find: that is what the whole run finds, and
// far from the capacity it takes a part of the requests.
func TestVerdictIsThatOfTheWholeRun(t *testing.T) {
	t.Parallel()
	const text = `model: bench-200m
profile: {base-ms: 10, per-token-ms: 0.1, per-context-token-ms: 0}
pools: {d: {role: decode, count: 1, max-sequences: 4}}
traffic: {rate: 1, prompt-tokens: "lognormal:100,80", output-tokens: "lognormal:20,20", warmup: 2s, duration: 10s, slo: "ttft:p90<300ms,tpot:p90<40ms"}
`
	passed, failed := 0, 0
	for _, rate := range []float64{2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 40, 100} {
		early, whole, sent, err := evidence.Verdict(t.Context(), text, rate)
		if err != nil {
			t.Fatal(err)
		}
		if early != whole || sent[0] > sent[1] {
			t.Errorf("at %v a second: %v after %d requests, %v after all %d", rate, early, sent[0], whole, sent[1])
		}
		if rate == 100 && sent[0] > sent[1]/2 {
			t.Errorf("%d of %d requests were sent before it was certain", sent[0], sent[1])
		}
		if whole {
			passed++
		} else {
			failed++
		}
	}
	if passed == 0 || failed == 0 {
		t.Errorf("%d rates passed, %d failed", passed, failed)
	}
}
