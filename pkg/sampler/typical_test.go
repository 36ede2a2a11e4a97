package sampler_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// seen is which tokens many draws give.
func seen(logits []float32, p sampler.Params) map[int32]bool {
	s, out := sampler.New(), make(map[int32]bool)
	for offset := range uint64(3000) {
		out[s.Sample(logits, p, offset, sampler.History{})] = true
	}
	return out
}

// An example by hand: probabilities 1/2, 1/4, 1/8, 1/8 have an entropy of 1.75 bits and surprises of
// 1, 2, 3 and 3 bits. The second is the nearest to it, then the first, then the others by id.
func TestTypical(t *testing.T) {
	bit := float32(math.Ln2)
	logits := []float32{-bit, -2 * bit, -3 * bit, -3 * bit}
	for share, want := range map[float32][]int32{
		0.2: {1}, 0.26: {0, 1}, 0.7: {0, 1}, 0.8: {0, 1, 2}, 0.9: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 0: {0, 1, 2, 3},
	} {
		got := seen(logits, sampler.Params{Temperature: 1, TypicalP: share})
		ok := len(got) == len(want)
		for _, id := range want {
			ok = ok && got[id]
		}
		if !ok {
			t.Errorf("typical_p %g: %v, want %v", share, got, want)
		}
	}
	// What top_k leaves has another entropy: of 1/2 and 1/4 the first is the nearer.
	if got := seen(logits, sampler.Params{Temperature: 1, TopK: 2, TypicalP: 0.2}); len(got) != 1 || !got[0] {
		t.Errorf("after top_k: %v", got)
	}
}

func TestMinTokens(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		name   string
		logits []float32
		p      sampler.Params
		offset uint64
		want   int32
	}{
		{"too early", []float32{5, 1, 2}, sampler.Params{MinTokens: 3, Ends: []int32{0}}, 2, 2},
		{"late enough", []float32{5, 1, 2}, sampler.Params{MinTokens: 3, Ends: []int32{0}}, 3, 0},
		{"two ends, one of them twice", []float32{5, 1, 2}, sampler.Params{MinTokens: 3, Ends: []int32{0, 2, 0}}, 0, 1},
		{"an end outside of the vocabulary", []float32{5, 1, 2}, sampler.Params{MinTokens: 3, Ends: []int32{7, -1}}, 0, 0},
		{"nothing else is left", []float32{inf, 1, inf}, sampler.Params{MinTokens: 3, Ends: []int32{1, 0, 1}}, 0, 1},
		{"biases forbid the rest", []float32{3, 1, 2}, sampler.Params{
			MinTokens: 3, Ends: []int32{1},
			LogitBias: []sampler.TokenBias{{Token: 0, Bias: sampler.MinLogitBias}, {Token: 2, Bias: sampler.MinLogitBias}},
		}, 0, 1},
		{"a bias that wants the end", []float32{3, 1}, sampler.Params{MinTokens: 3, Ends: []int32{1}, LogitBias: []sampler.TokenBias{{Token: 1, Bias: sampler.MaxLogitBias}}}, 0, 0},
	} {
		if got := sampler.New().Sample(c.logits, c.p, c.offset, sampler.History{}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	// A form that is complete ends; one that is not goes on.
	p := sampler.Params{MinTokens: 3, Ends: []int32{0}}
	for mask, want := range map[uint64]int32{1: 0, 3: 1} {
		if got := sampler.New().SampleAllowed([]float32{5, 1, 2}, []uint64{mask}, p, 0, sampler.History{}); got != want {
			t.Errorf("allowed %b: %d, want %d", mask, got, want)
		}
	}
}
