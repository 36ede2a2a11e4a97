package int8kv_test

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

const (
	fableDir  = "../../../../models/fable"
	continued = 64 // tokens compared after a prompt
)

// pair is a prefill engine and a decode engine that got its KV through the encoding.
type pair struct {
	t           *testing.T
	exact, near engine.Engine
	coding      wire.Coding
	table       []kvcache.BlockID
}

func newPair(t *testing.T, blocks int) *pair {
	t.Helper()
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	weights, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t}
	for _, e := range []*engine.Engine{&p.exact, &p.near} {
		if *e, err = weights.NewEngine(cpu.Config{Blocks: blocks}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{p.exact, p.near, weights, m} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	p.coding = newCoding(t, p.exact.Capacity().Layout)
	for b := range blocks {
		p.table = append(p.table, kvcache.BlockID(b))
	}
	return p
}

// step returns the logits after each token, or only the last.
func (p *pair) step(e engine.Engine, tokens []int32, start int, wanted engine.LogitsWanted) [][]float32 {
	p.t.Helper()
	var rows [][]float32
	for len(tokens) > 0 {
		n := min(len(tokens), e.Capacity().MaxBatchTokens)
		out, err := e.Step(p.t.Context(), engine.Batch{Sequences: []engine.Sequence{{
			Tokens: tokens[:n], Start: start, Blocks: p.table, Logits: wanted}}})
		if err != nil {
			p.t.Fatal(err)
		}
		rows = append(rows, out.Logits[0]...)
		tokens, start = tokens[n:], start+n
	}
	return rows
}

// ship copies a prompt's KV from one engine to the other.
func (p *pair) ship(tokens int) {
	p.t.Helper()
	l := p.exact.Capacity().Layout
	slice, encoded := make([]byte, l.SliceBytes), make([]byte, p.coding.EncodedBytes())
	for _, b := range p.table[:(tokens+l.BlockTokens-1)/l.BlockTokens] {
		for layer := range l.Layers {
			if err := p.exact.Pages().Read(layer, []kvcache.BlockID{b}, slice); err != nil {
				p.t.Fatal(err)
			}
			p.coding.Encode(encoded, slice)
			if err := p.coding.Decode(slice, encoded); err != nil {
				p.t.Fatal(err)
			}
			if err := p.near.Pages().Write(layer, []kvcache.BlockID{b}, slice); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// likeliest is what greedy sampling draws.
func likeliest(logits []float32) int32 {
	return int32(slices.Index(logits, slices.Max(logits)))
}

func logProbabilities(logits []float32) []float64 {
	largest, sum := float64(slices.Max(logits)), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - largest)
	}
	out := make([]float64, len(logits))
	for i, x := range logits {
		out[i] = float64(x) - largest - math.Log(sum)
	}
	return out
}

// effect accumulates results for prompts of one length.
type effect struct {
	steps, equal        int     // decode steps, and those with the same argmax
	exactNats, nearNats float64 // negative log-likelihood of the text
	divergence, worst   float64 // KL divergence of the near from the exact distribution
	completions         int
	diverged            []int // for completions that differ: tokens before the first difference
}

// follow decodes the given text after a prompt.
func (p *pair) follow(prompt, text []int32, sum *effect) {
	exact := p.step(p.exact, text[:len(text)-1], len(prompt), engine.LogitsAll)
	near := p.step(p.near, text[:len(text)-1], len(prompt), engine.LogitsAll)
	for i := range exact {
		a, b := logProbabilities(exact[i]), logProbabilities(near[i])
		sum.steps++
		if likeliest(exact[i]) == likeliest(near[i]) {
			sum.equal++
		}
		sum.exactNats -= a[text[i+1]]
		sum.nearNats -= b[text[i+1]]
		divergence := 0.0
		for v := range a {
			divergence += math.Exp(a[v]) * (a[v] - b[v])
		}
		sum.divergence += divergence
		sum.worst = max(sum.worst, divergence)
	}
}

// complete decodes greedily after a prompt, starting with first.
func (p *pair) complete(prompt []int32, first int32, sum *effect) {
	one, other := first, first
	for i := range continued - 1 {
		one = likeliest(p.step(p.exact, []int32{one}, len(prompt)+i, engine.LogitsLast)[0])
		other = likeliest(p.step(p.near, []int32{other}, len(prompt)+i, engine.LogitsLast)[0])
		if one != other {
			sum.diverged = append(sum.diverged, i+1)
			break
		}
	}
	sum.completions++
}

// TestEffectOnTokens measures the encoding's effect on the bundled model's tokens; -v
// prints it. The engine's arithmetic is bit-exact, so the figures are the same everywhere.
// The bounds are about twice the measured values.
func TestEffectOnTokens(t *testing.T) {
	longtest.Only(t)
	tok, err := tokenizer.Open(fableDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fableDir + "/heldout.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), true)
	p := newPair(t, 34)
	for _, length := range []int{16, 64, 256, 768} {
		const prompts = 12
		var sum effect
		for i := range prompts {
			first := i * (len(ids) - length - continued) / (prompts - 1)
			prompt := ids[first : first+length]
			last := p.step(p.exact, prompt, 0, engine.LogitsLast)
			p.ship(length)
			p.follow(prompt, ids[first+length:first+length+continued], &sum)
			p.complete(prompt, likeliest(last[len(last)-1]), &sum)
		}
		n := float64(sum.steps)
		slices.Sort(sum.diverged)
		t.Logf("prompts of %d tokens: likeliest token the same in %d of %d steps (%.2f%%); %.4f nats a token, exact %.4f; divergence %.6f nats, at most %.6f; %d of %d greedy completions of %d tokens differ, after %v",
			length, sum.equal, sum.steps, 100*float64(sum.equal)/n, sum.nearNats/n, sum.exactNats/n, sum.divergence/n, sum.worst,
			len(sum.diverged), sum.completions, continued, sum.diverged)
		if share := float64(sum.equal) / n; share < 0.975 {
			t.Errorf("prompts of %d tokens: the likeliest token is the same in %.4f of the steps", length, share)
		}
		if d := sum.divergence / n; d == 0 || d > 0.0006 {
			t.Errorf("prompts of %d tokens: divergence is %.6f", length, d)
		}
		if change := math.Abs(sum.nearNats-sum.exactNats) / n; change > 0.001 {
			t.Errorf("prompts of %d tokens: nats a token change by %.6f", length, change)
		}
	}
}
