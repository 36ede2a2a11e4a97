package speculation_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/speculation"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func plan() speculation.Plan {
	return speculation.Plan{DType: cpu.BF16, KV: cpu.KVBF16, Batch: 2, PassageTokens: 32, Repeats: 2, Tokens: 60, MaxDrafts: 6, Keep: 0.8, Rounds: 2, ProcessorTime: true}
}

func load(t *testing.T) *cpu.Weights {
	t.Helper()
	return benchtest.Tiny(t, cpu.BF16)
}

// TestMeasure: a model of random weights soon repeats itself, so that there are drafts. How many,
// and so how many are right, depends on what steps take.
func TestMeasure(t *testing.T) {
	w := load(t)
	var done []int64
	r, err := speculation.Measure(t.Context(), w, nil, plan(), func(now, total int64) { done = append(done, now, total) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Plan != plan() || r.Model != "tiny" || r.Threads != 1 || len(done) != 4 {
		t.Errorf("%+v, progress %v", r, done)
	}
	if r.Drafts == 0 || r.Accepted > r.Drafts || r.Acceptance < 0 || r.Acceptance > 1 {
		t.Errorf("%d of %d draft tokens were right: acceptance %v", r.Accepted, r.Drafts, r.Acceptance)
	}
	if !(r.PlainTokens > 0) || !(r.SpeculativeTokens > 0) || !(r.Gain > 0) || len(r.Gains) != r.Rounds || r.TokensPerStep < 1 {
		t.Errorf("%+v", r)
	}
	t.Logf("%+v", r)
}

// TestMeasureADraftModel: a draft model that is the model itself is always right.
func TestMeasureADraftModel(t *testing.T) {
	p := plan()
	p.DraftModel, p.Keep, p.Repeats = "tiny", 1, 1
	w := load(t)
	r, err := speculation.Measure(t.Context(), w, w, p, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if r.Drafts == 0 || r.Accepted != r.Drafts || r.Acceptance != 1 || r.TokensPerStep <= 1 || !(r.DraftingShare > 0) {
		t.Errorf("%+v", r)
	}
	t.Logf("%+v", r)
}

func TestMeasureWithoutHope(t *testing.T) {
	p := plan()
	p.Keep, p.Rounds, p.ProcessorTime = 0, 1, false
	r, err := speculation.Measure(t.Context(), load(t), nil, p, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if r.Drafts == 0 || r.Accepted != 0 || r.TokensPerStep != 1 {
		t.Errorf("%+v", r)
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		says   string
		change func(*speculation.Plan)
	}{
		{"", func(*speculation.Plan) {}},
		{"--dtype", func(p *speculation.Plan) { p.DType = "x" }},
		{"--kv", func(p *speculation.Plan) { p.KV = "x" }},
		{"--batch", func(p *speculation.Plan) { p.Batch = 0 }},
		{"--passage", func(p *speculation.Plan) { p.PassageTokens = 1 }},
		{"--repeats", func(p *speculation.Plan) { p.Repeats = 0 }},
		{"--passage-temperature", func(p *speculation.Plan) { p.PassageTemperature = -1 }},
		{"--tokens", func(p *speculation.Plan) { p.Tokens = 1 }},
		{"--speculate-tokens", func(p *speculation.Plan) { p.MaxDrafts = 16 }},
		{"--keep", func(p *speculation.Plan) { p.Keep = 1.1 }},
		{"--keep", func(p *speculation.Plan) { p.DraftModel = "x" }},
		{"--temperature", func(p *speculation.Plan) { p.Temperature = -1 }},
		{"--rounds", func(p *speculation.Plan) { p.Rounds = 0 }},
		{"--passage and --tokens", func(p *speculation.Plan) { p.Tokens = 2000 }},
	} {
		p := plan()
		c.change(&p)
		err := p.ValidateFor("tiny", 1024)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, which should speak of %q", p, err, c.says)
		}
	}
}
