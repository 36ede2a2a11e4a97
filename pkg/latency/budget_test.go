package latency_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
)

const ms = time.Millisecond

// stages are times in the order of the stages, without those of failed tries.
func stages(tokenize time.Duration, d ...time.Duration) (s [api.NumStages]time.Duration) {
	s[api.StageTokenize] = tokenize
	copy(s[api.StageQueue:], d)
	return s
}

func TestBudgetValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		b    latency.Budget
		want string // of the error; empty: none
	}{
		{"nothing", latency.Budget{}, ""},
		{"all of ttft", latency.Budget{Stages: stages(0, 200*ms, 0, 0, 300*ms), Totals: [3]time.Duration{500 * ms}}, ""},
		{"negative stage", latency.Budget{Stages: stages(0, -ms)}, "budget-queue is -1ms"},
		{"negative total", latency.Budget{Totals: [3]time.Duration{0, -ms}}, "budget-tpot is -1ms"},
		{"endless", latency.Budget{Totals: [3]time.Duration{0, 0, 1 << 62}}, "budget-e2e is"},
		{"over ttft", latency.Budget{Stages: stages(0, 201*ms, 0, 0, 300*ms), Totals: [3]time.Duration{500 * ms}},
			"budget-ttft is 500ms, but its stages add up to 501ms: raise it or lower one of budget-queue 201ms, budget-prefill 300ms"},
		{"transfer is not in ttft", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 900*ms), Totals: [3]time.Duration{500 * ms}}, ""},
		{"over e2e", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 900*ms, 200*ms), Totals: [3]time.Duration{0, 0, time.Second}},
			"budget-transfer-exposed 900ms, budget-decode 200ms"},
		{"ttft over e2e", latency.Budget{Totals: [3]time.Duration{2 * time.Second, 0, time.Second}}, "budget-ttft, which is part of it, 2s"},
		{"decode over tpot", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 0, 31*ms), Totals: [3]time.Duration{0, 30 * ms}}, "budget-decode, which is part of it, 31ms"},
	} {
		err := test.b.Validate()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// spend makes a request whose stages follow one another, as the router's do.
func spend(tokens int, s [api.NumStages]time.Duration) *latency.Spent {
	spent := &latency.Spent{Stages: s, Tokens: tokens}
	for stage, d := range s {
		spent.E2E += d
		if api.Stage(stage) <= api.StagePrefill {
			spent.TTFT += d
		}
	}
	if tokens > 1 {
		spent.TPOT = (spent.E2E - spent.TTFT) / time.Duration(tokens-1)
	}
	return spent
}

func TestBudgetCheck(t *testing.T) {
	ttft := [3]time.Duration{500 * ms}
	for _, test := range []struct {
		name string
		b    latency.Budget
		s    *latency.Spent
		want string // the stage; empty: within the budget
	}{
		{"nothing declared", latency.Budget{}, spend(2, stages(0, time.Hour)), ""},
		{"exactly the budget", latency.Budget{Totals: ttft}, spend(2, stages(0, 200*ms, 0, 0, 300*ms)), ""},
		{"the longest, if none is declared", latency.Budget{Totals: ttft}, spend(2, stages(0, 200*ms, 0, 0, 301*ms)), "prefill"},
		{"furthest over, not longest", latency.Budget{Stages: stages(0, 50*ms, 0, 0, 400*ms), Totals: ttft},
			spend(2, stages(0, 200*ms, 0, 0, 420*ms)), "queue"},
		{"over, but the total holds", latency.Budget{Stages: stages(0, 50*ms), Totals: ttft}, spend(2, stages(0, 400*ms)), ""},
		{"those declared hold: the rest broke it", latency.Budget{Stages: stages(0, 300*ms), Totals: ttft},
			spend(2, stages(0, 290*ms, 10*ms, 30*ms, 180*ms)), "prefill"},
		{"the rest has what is left of the total", latency.Budget{Stages: stages(0, 50*ms), Totals: ttft},
			spend(2, stages(0, 150*ms, 0, 0, 460*ms)), "queue"},
		{"decode is per token", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 20*ms, 30*ms), Totals: [3]time.Duration{0, 31 * ms}},
			spend(11, stages(0, 0, 0, 0, 0, 25*ms, 330*ms)), "decode"},
		{"the transfer is not", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 20*ms, 30*ms), Totals: [3]time.Duration{0, 31 * ms}},
			spend(11, stages(0, 0, 0, 0, 0, 90*ms, 300*ms)), "transfer_exposed"},
		{"an hour a token, for millions", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 0, time.Hour)}, spend(4_000_000, stages(0, 0, 0, 0, 0, 0, time.Hour)), ""},
		{"one token has no tpot", latency.Budget{Totals: [3]time.Duration{0, ms}}, spend(1, stages(0, 0, 0, 0, 50*ms)), ""},
		{"e2e asks all stages", latency.Budget{Totals: [3]time.Duration{0, 0, time.Second}},
			spend(11, stages(0, 100*ms, 0, 0, 300*ms, 0, 900*ms)), "decode"},
		{"what took no time broke nothing", latency.Budget{Stages: stages(0, 0, 0, 0, 0, 3*ms), Totals: [3]time.Duration{0, ms}},
			spend(2, stages(0, 0, 0, 0, 0, 2*ms)), "transfer_exposed"},
		{"a stage without a total", latency.Budget{Stages: stages(0, 50*ms), Totals: [3]time.Duration{0, 30 * ms}},
			spend(2, stages(0, 51*ms)), "queue"},
	} {
		breach, broken := test.b.Check(test.s)
		if broken != (test.want != "") || broken && breach.Stage.String() != test.want {
			t.Errorf("%s: %v %v, want %q", test.name, broken, breach, test.want)
		}
	}
}

// A request is over its budget exactly if a declared total is exceeded, and the
// stage that is named spent something and is one of that total's.
func TestBudgetNamesAStageOfWhatWasExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "d"))
		})
		var b latency.Budget
		for i := range b.Stages {
			if rapid.Bool().Draw(t, "declared") {
				b.Stages[i] = some.Draw(t, "stage")
				if api.Stage(i) <= api.StagePrefill {
					b.Totals[latency.TotalTTFT] += b.Stages[i]
				}
			}
		}
		b.Totals[latency.TotalTTFT] += 1 + some.Draw(t, "rest of ttft")
		b.Totals[latency.TotalTPOT] = 1 + b.Stages[api.StageDecode] + some.Draw(t, "rest of tpot")
		b.Totals[latency.TotalE2E] = b.Totals[latency.TotalTTFT] + b.Stages[api.StageTransferExposed] + b.Stages[api.StageDecode] + some.Draw(t, "rest of e2e")
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		var taken [api.NumStages]time.Duration
		for i := range taken {
			taken[i] = some.Draw(t, "spent")
		}
		tokens := rapid.IntRange(1, 20).Draw(t, "tokens")
		if tokens == 1 {
			taken[api.StageTransferExposed], taken[api.StageDecode] = 0, 0
		}
		s := spend(tokens, taken)
		breach, broken := b.Check(s)
		want := [3]bool{s.TTFT > b.Totals[0], s.TPOT > b.Totals[1], s.E2E > b.Totals[2]}
		if breach.Exceeded != want || broken != (want != [3]bool{}) {
			t.Fatalf("%+v of %+v: got %+v %v, want %v", s, b, breach, broken, want)
		}
		if !broken {
			return
		}
		if s.Stages[breach.Stage] == 0 {
			t.Fatalf("%v broke it and spent nothing: %+v of %+v", breach.Stage, s, b)
		}
		early := breach.Stage <= api.StagePrefill
		if !want[2] && (early && !want[0] || !early && !want[1]) {
			t.Fatalf("%v is no part of what was exceeded: %v", breach.Stage, want)
		}
	})
}
