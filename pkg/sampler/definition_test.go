package sampler_test

import (
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// drawable says whether a token can be drawn from logits: none is NaN, and the largest is
// finite.
func drawable(logits []float32) bool {
	isNaN := func(l float32) bool { return l != l }
	return !slices.ContainsFunc(logits, isNaN) && !math.IsInf(float64(slices.Max(logits)), 0)
}

// inOrder is the tokens in the order that Sample documents, by a full sort.
func inOrder(logits []float32) []int {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		return logits[order[i]] > logits[order[j]]
	})
	return order
}

// adjusted is step 1 of Sample's definition, word by word.
func adjusted(logits []float32, p sampler.Params, offset uint64, h sampler.History) []float32 {
	out := slices.Clone(logits)
	for _, b := range p.LogitBias {
		if int(b.Token) < len(out) {
			out[b.Token] += b.Bias
			if b.Bias == sampler.MinLogitBias {
				out[b.Token] = float32(math.Inf(-1))
			}
		}
	}
	for id := range out {
		times := 0
		for _, token := range h.Generated {
			if int(token) == id {
				times++
			}
		}
		if p.RepetitionPenalty != 0 && (times > 0 || slices.Contains(h.Prompt, int32(id))) {
			if out[id] > 0 {
				out[id] /= p.RepetitionPenalty
			} else {
				out[id] *= p.RepetitionPenalty
			}
		}
		if times > 0 {
			product := p.FrequencyPenalty * float32(times)
			difference := out[id] - float32(product)
			out[id] = float32(difference) - p.PresencePenalty
		}
	}
	if offset < uint64(p.MinTokens) {
		least := float32(math.Inf(-1))
		rest := slices.Clone(out)
		for _, id := range p.Ends {
			if int(id) < len(rest) {
				rest[id] = least
			}
		}
		if slices.Max(rest) > least {
			return rest
		}
	}
	return out
}

// typical is what locally typical sampling keeps of tokens with these weights, by the paper's
// formula: with p = weight / sum, those whose -log(p) is the nearest to the entropy -sum(p·log(p)).
// The second result is as that of reference.
func typical(ids []int, logits []float32, weight []float64, share float64) (kept []int, certain bool) {
	var sum, entropy float64
	for _, id := range ids {
		sum += weight[id]
	}
	surprise := make(map[int]float64)
	for _, id := range ids {
		if p := weight[id] / sum; p > 0 {
			surprise[id] = -math.Log(p)
			entropy -= p * math.Log(p)
			kept = append(kept, id)
		}
	}
	distance := func(id int) float64 { return math.Abs(surprise[id] - entropy) }
	same := func(a, b int) bool { return logits[a] == logits[b] }
	sort.SliceStable(kept, func(i, j int) bool {
		a, b := kept[i], kept[j]
		switch {
		case same(a, b):
			return a < b
		case distance(a) != distance(b):
			return distance(a) < distance(b)
		}
		return logits[a] > logits[b]
	})
	certain = true
	for i := 1; i < len(kept); i++ {
		if !same(kept[i-1], kept[i]) && math.Abs(distance(kept[i-1])-distance(kept[i])) < 1e-9 {
			certain = false
		}
	}
	var running float64
	for n, id := range kept {
		running += weight[id]
		if math.Abs(running-share*sum) < 1e-9*sum {
			certain = false
		}
		if running >= share*sum {
			kept = kept[:n+1]
			break
		}
	}
	sort.Ints(kept)
	return kept, certain
}

// reference is Sample's definition, word by word: a full sort, no scratch. The
// second result is false where the sums are so close to a limit that the standard
// library's exponential may not decide.
func reference(logits []float32, p sampler.Params, offset uint64, h sampler.History) (int32, bool) {
	if !drawable(logits) {
		return sampler.None, true
	}
	logits = adjusted(logits, p, offset, h)
	order := inOrder(logits)
	first := logits[order[0]]
	if p.Temperature == 0 || math.IsInf(float64(first), 0) {
		return int32(order[0]), true
	}
	weight := make([]float64, len(logits))
	for i, l := range logits {
		weight[i] = math.Exp((float64(l) - float64(first)) / float64(p.Temperature))
	}
	kept := order
	if p.TopK > 0 && p.TopK < len(kept) {
		kept = kept[:p.TopK]
	}
	certain := true
	if p.TopP > 0 && p.TopP < 1 {
		var total, running float64
		for _, id := range kept {
			total += weight[id]
		}
		for n, id := range kept {
			running += weight[id]
			if math.Abs(running-float64(p.TopP)*total) < 1e-9*total {
				certain = false // within rounding of the limit
			}
			if running >= float64(p.TopP)*total {
				kept = kept[:n+1]
				break
			}
		}
	}
	ids := slices.Clone(kept)
	sort.Ints(ids)
	var left []int
	var sum float64
	for _, id := range ids {
		if math.Abs(weight[id]-float64(p.MinP)) < 1e-9 {
			certain = false
		}
		if weight[id] >= float64(p.MinP) {
			left = append(left, id)
			sum += weight[id]
		}
	}
	if p.TypicalP > 0 && p.TypicalP < 1 {
		var sure bool
		left, sure = typical(left, logits, weight, float64(p.TypicalP))
		certain = certain && sure
		sum = 0
		for _, id := range left {
			sum += weight[id]
		}
	}
	target := sampler.Uniform(p.Seed, offset) * sum
	var running float64
	for _, id := range left {
		running += weight[id]
		if math.Abs(running-target) < 1e-9*sum {
			certain = false
		}
		if running > target {
			return int32(id), certain
		}
	}
	return int32(left[len(left)-1]), false
}

func genParams(t *rapid.T) sampler.Params {
	p := sampler.Params{
		Temperature:       rapid.SampledFrom([]float32{0, 0.01, 0.5, 0.8, 1, 1.5, 20}).Draw(t, "temperature"),
		TopK:              rapid.SampledFrom([]int{0, 1, 2, 3, 10, 1000}).Draw(t, "top_k"),
		TopP:              rapid.SampledFrom([]float32{0, 0.1, 0.5, 0.9, 0.999, 1}).Draw(t, "top_p"),
		MinP:              rapid.SampledFrom([]float32{0, 0, 0.05, 0.5}).Draw(t, "min_p"),
		TypicalP:          rapid.SampledFrom([]float32{0, 0, 0.1, 0.5, 0.95, 1}).Draw(t, "typical_p"),
		Seed:              rapid.Uint64().Draw(t, "seed"),
		MinTokens:         rapid.SampledFrom([]int{0, 0, 500}).Draw(t, "min_tokens"),
		Ends:              rapid.SliceOfN(rapid.Int32Range(0, 220), 0, 4).Draw(t, "ends"),
		RepetitionPenalty: rapid.SampledFrom([]float32{0, 1, 0.5, 1.1, 100}).Draw(t, "repetition_penalty"),
		PresencePenalty:   rapid.SampledFrom([]float32{0, 0, 0.3, -2}).Draw(t, "presence_penalty"),
		FrequencyPenalty:  rapid.SampledFrom([]float32{0, 0, 0.7, -0.1}).Draw(t, "frequency_penalty"),
	}
	biases := rapid.MapOfN(rapid.Int32Range(0, 220), rapid.SampledFrom([]float32{-100, -3.3, 0, 0.1, 100}), 0, 5).Draw(t, "logit_bias")
	for token, b := range biases {
		p.LogitBias = append(p.LogitBias, sampler.TokenBias{Token: token, Bias: b})
	}
	slices.SortFunc(p.LogitBias, func(a, b sampler.TokenBias) int { return int(a.Token - b.Token) })
	return p
}

func genLogits(most int) *rapid.Generator[[]float32] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
		switch rapid.IntRange(0, 300).Draw(t, "odd") {
		case 0:
			return rapid.SampledFrom([]float32{float32(math.NaN()), float32(math.Inf(1))}).Draw(t, "l")
		case 1, 2, 3, 4, 5, 6, 7, 8, 9:
			return rapid.SampledFrom([]float32{float32(math.Inf(-1)), float32(math.Copysign(0, -1)), -300}).Draw(t, "l")
		}
		return float32(rapid.IntRange(-40, 40).Draw(t, "l")) / 4 // many ties
	}), 1, most)
}

func TestSampleAgreesWithItsDefinition(t *testing.T) {
	s := sampler.New() // one for all draws: scratch must not leak from one to the next
	rapid.Check(t, func(t *rapid.T) {
		logits := genLogits(200).Draw(t, "logits")
		p, offset := genParams(t), rapid.Uint64Range(0, 1000).Draw(t, "offset")
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		tokens := rapid.SliceOfN(rapid.Int32Range(-1, 220), 0, 12) // some outside the vocabulary
		h := sampler.History{Prompt: tokens.Draw(t, "prompt"), Generated: tokens.Draw(t, "generated")}
		before := slices.Clone(logits)
		got := s.Sample(logits, p, offset, h)
		want, certain := reference(logits, p, offset, h)
		if certain && got != want {
			t.Fatalf("Sample = %d, the definition gives %d", got, want)
		}
		if again := sampler.New().Sample(logits, p, offset, h); again != got {
			t.Fatalf("Sample = %d, with fresh memory %d", got, again)
		}
		for i := range logits {
			if math.Float32bits(logits[i]) != math.Float32bits(before[i]) {
				t.Fatal("Sample changed the logits")
			}
		}
	})
}

func TestPenaltiesAndBias(t *testing.T) {
	logits := []float32{2, -1, 3, 3, 0.5}
	for _, c := range []struct {
		name    string
		params  sampler.Params
		history sampler.History
		want    int32
	}{
		{"nothing", sampler.Params{}, sampler.History{Prompt: []int32{2}, Generated: []int32{2, 2}}, 2},
		{"repetition counts the prompt", sampler.Params{RepetitionPenalty: 1.5}, sampler.History{Prompt: []int32{2, 2}}, 3},
		{"repetition divides once", sampler.Params{RepetitionPenalty: 1.2}, sampler.History{Prompt: []int32{2, 3, 2, 3, 3}, Generated: []int32{2, 3}}, 2},
		{"repetition below 1 attracts", sampler.Params{RepetitionPenalty: 0.5}, sampler.History{Prompt: []int32{0}}, 0},
		{"presence counts what was generated", sampler.Params{PresencePenalty: 1.5}, sampler.History{Prompt: []int32{3}, Generated: []int32{2}}, 3},
		{"presence counts once", sampler.Params{PresencePenalty: 0.6}, sampler.History{Generated: []int32{2, 2, 2, 3}}, 2},
		{"frequency counts each time", sampler.Params{FrequencyPenalty: 0.6}, sampler.History{Generated: []int32{2, 2, 3}}, 3},
		{"negative frequency attracts", sampler.Params{FrequencyPenalty: -1}, sampler.History{Generated: []int32{0, 0}}, 0},
		{"bias", sampler.Params{LogitBias: []sampler.TokenBias{{Token: 1, Bias: 50}}}, sampler.History{}, 1},
		{"-100 forbids, however likely", sampler.Params{LogitBias: []sampler.TokenBias{{Token: 2, Bias: -100}, {Token: 3, Bias: -100}}}, sampler.History{}, 0},
		{"bias comes before repetition", sampler.Params{RepetitionPenalty: 2, LogitBias: []sampler.TokenBias{{Token: 1, Bias: 5}}}, sampler.History{Prompt: []int32{1, 2, 3}}, 0},
		{"outside the vocabulary", sampler.Params{PresencePenalty: 1, LogitBias: []sampler.TokenBias{{Token: 99, Bias: 9}}}, sampler.History{Generated: []int32{99, -1}}, 2},
	} {
		if got := sampler.New().Sample(logits, c.params, 0, c.history); got != c.want {
			t.Errorf("%s: token %d, want %d", c.name, got, c.want)
		}
	}
}

// TestKeepNeedsNoLuck: whatever the spread of the logits, sorting only a beginning
// of them gives what sorting all gives.
func TestKeepNeedsNoLuck(t *testing.T) {
	s := sampler.New()
	rapid.Check(t, func(t *rapid.T) {
		spread := rapid.SampledFrom([]float32{0, 1e-6, 0.01, 1, 100, 1e6, 1e38}).Draw(t, "spread")
		logits := make([]float32, rapid.IntRange(1, 3000).Draw(t, "vocabulary"))
		seed := rapid.Uint64().Draw(t, "logits")
		for i := range logits {
			logits[i] = float32(sampler.Uniform(seed, uint64(i))-0.5) * spread
		}
		p := sampler.Params{
			Temperature: rapid.SampledFrom([]float32{1e-30, 0.7, 1, 100}).Draw(t, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 2, 50, 2999}).Draw(t, "top_k"),
			TopP:        rapid.SampledFrom([]float32{0, 1e-9, 0.3, 0.95, 0.9999999}).Draw(t, "top_p"),
			Seed:        rapid.Uint64().Draw(t, "seed"),
		}
		got := s.Sample(logits, p, 0, sampler.History{})
		if want, certain := reference(logits, p, 0, sampler.History{}); certain && got != want {
			t.Fatalf("Sample = %d, the definition gives %d", got, want)
		}
	})
}
