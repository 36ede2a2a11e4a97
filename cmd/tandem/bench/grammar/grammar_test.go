package grammar_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/grammar"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestMeasure(t *testing.T) {
	r, err := grammar.Measure(t.Context(), grammar.Plan{Sizes: []int{3000}, Outputs: 2, MaxTokens: 40})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Forms) < 5 || len(r.FirstMask) != 1 || r.FirstMask[0].SchemaBytes < 10_000 {
		t.Fatalf("%+v", r)
	}
	for _, f := range r.Forms {
		if f.Vocabulary != 3000 || f.New.Masks < 8 || f.Used.Masks < 2 || f.New.P50 > f.New.P99 || f.New.P99 > f.New.Max || f.Used.P50 > f.Used.Max {
			t.Errorf("%+v", f)
		}
	}
}

// The batch has all its tokens, each way.
func TestMeasureRate(t *testing.T) {
	plan := grammar.RatePlan{Batch: 2, Prompt: 8, Tokens: 12, Temperature: 1, Rounds: 2}
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	ignore := func(int64, int64) {}
	if _, err := grammar.MeasureRate(t.Context(), benchtest.Random(t, shape, cpu.BF16), plan, ignore); err == nil {
		t.Errorf("JSON is written with %d tokens", shape.VocabSize)
	}
	shape.VocabSize = 4000
	r, err := grammar.MeasureRate(t.Context(), benchtest.Random(t, shape, cpu.BF16), plan, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if r.RatePlan != plan || !(r.FreeTokens > 0) || !(r.HeldTokens > 0) || !(r.LateTokens > 0) || !(r.Held > 0) || !(r.LateProcessor > 0) {
		t.Errorf("%+v", r)
	}
}

func TestRatePlan(t *testing.T) {
	for says, change := range map[string]func(*grammar.RatePlan){
		"--batch":               func(p *grammar.RatePlan) { p.Batch = 0 },
		"--prompt":              func(p *grammar.RatePlan) { p.Prompt = 0 },
		"--tokens":              func(p *grammar.RatePlan) { p.Tokens = 1 },
		"--temperature":         func(p *grammar.RatePlan) { p.Temperature = -1 },
		"--rounds":              func(p *grammar.RatePlan) { p.Rounds = 0 },
		"--prompt and --tokens": func(p *grammar.RatePlan) { p.Tokens = 2000 },
	} {
		p := grammar.RatePlan{Batch: 1, Prompt: 1, Tokens: 2, Rounds: 1}
		change(&p)
		if err := p.ValidateFor("tiny", 1024); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: error %v, which should speak of %q", p, err, says)
		}
	}
}

func TestSynthetic(t *testing.T) {
	texts := grammar.Synthetic(20_000)
	seen := map[string]bool{}
	for id, text := range texts {
		if id > 0 && (len(text) == 0 || seen[string(text)]) {
			t.Fatalf("token %d is %q", id, text)
		}
		seen[string(text)] = true
	}
	if len(texts) != 20_000 {
		t.Errorf("%d tokens", len(texts))
	}
}
