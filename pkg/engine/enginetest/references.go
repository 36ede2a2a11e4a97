package enginetest

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Tolerances of models/fable/README.md.
const (
	logitTolerance  = 0.15
	nllTolerance    = 0.02
	marginTolerance = 0.3
)

// referenceCase is one prompt of a model's reference.jsonl.
type referenceCase struct {
	Prompt   string       `json:"prompt"`
	TokenIDs []int32      `json:"token_ids"`
	Top      [][2]float64 `json:"last_logits_top16"`
	Mean     float64      `json:"last_logits_mean"`
	Std      float64      `json:"last_logits_std"`
	NLL      []float64    `json:"prompt_nll"`
	Greedy   []int32      `json:"greedy"`
	Margin   []float64    `json:"greedy_margin"`
}

func references(t *testing.T, dir string) []referenceCase {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "reference.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []referenceCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c referenceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil || len(cases) == 0 {
		t.Fatalf("%d references: %v", len(cases), err)
	}
	return cases
}

// RunReferenceLogits compares an engine of the bundled model with what an independent
// implementation computed, which lies in the model's folder. The engine has 512 tokens
// of KV or more and takes whole prompts.
func RunReferenceLogits(t *testing.T, dir string, e engine.Engine) {
	for _, c := range references(t, dir) {
		out := mustStep(t, e, engine.Sequence{Tokens: c.TokenIDs, Blocks: blocksFor(e, len(c.TokenIDs), 0), Logits: engine.LogitsAll})
		rows := out.Logits[0]
		if len(rows) != len(c.TokenIDs) {
			t.Fatalf("%q: %d rows of logits for %d tokens", c.Prompt, len(rows), len(c.TokenIDs))
		}
		last := rows[len(rows)-1]
		for _, top := range c.Top {
			if got := float64(last[int(top[0])]); !(math.Abs(got-top[1]) <= logitTolerance) {
				t.Errorf("%q: logit of %d is %.4f, reference %.4f", c.Prompt, int(top[0]), got, top[1])
			}
		}
		var sum, squares float64
		for _, x := range last {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		mean := sum / float64(len(last))
		std := math.Sqrt(squares/float64(len(last)) - mean*mean)
		if !(math.Abs(mean-c.Mean) <= logitTolerance/2) || !(math.Abs(std-c.Std) <= logitTolerance/2) {
			t.Errorf("%q: logits have mean %.4f and deviation %.4f, reference %.4f and %.4f", c.Prompt, mean, std, c.Mean, c.Std)
		}
		var got, want float64
		for i, n := range c.NLL {
			got += NLL(rows[i], c.TokenIDs[i+1])
			want += n
		}
		if n := float64(len(c.NLL)); !(math.Abs(got-want)/n <= nllTolerance) {
			t.Errorf("%q: %.4f nats a token, reference %.4f", c.Prompt, got/n, want/n)
		}
	}
}

// RunReferenceContinuations compares greedy continuations likewise, as far as the
// reference's lead is clear: of the first prompts, or of all if most is 0.
func RunReferenceContinuations(t *testing.T, dir string, e engine.Engine, most int) {
	cases := references(t, dir)
	if most > 0 {
		cases = cases[:min(most, len(cases))]
	}
	for _, c := range cases {
		compareGreedy(t, e, c.Prompt, c.TokenIDs, c.Greedy, c.Margin, marginTolerance)
	}
}

// compareGreedy decodes after a prompt, and wants the tokens of a reference up to the
// first one that has no clear lead.
func compareGreedy(t *testing.T, e engine.Engine, what string, prompt, greedy []int32, margins []float64, clear float64) {
	t.Helper()
	blocks := blocksFor(e, len(prompt)+len(greedy), 0)
	tokens, start := prompt, 0
	for i, want := range greedy {
		out := mustStep(t, e, engine.Sequence{Tokens: tokens, Start: start, Blocks: blocks, Sample: &engine.Sample{Params: sampler.Params{}, Offset: uint64(i)}})
		if out.Tokens[0] != want {
			if margins[i] >= clear {
				t.Errorf("%q: token %d is %d, reference %d by a margin of %.3f", what, i, out.Tokens[0], want, margins[i])
			}
			return
		}
		start += len(tokens)
		tokens = []int32{want}
	}
}

// NLL is the negative log likelihood of a token, in nats.
func NLL(logits []float32, token int32) float64 {
	largest := math.Inf(-1)
	for _, x := range logits {
		largest = max(largest, float64(x))
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - largest)
	}
	return largest + math.Log(sum) - float64(logits[token])
}
