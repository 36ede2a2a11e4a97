package cpu_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

// logProbabilities are those of all tokens.
func logProbabilities(logits []float32) []float64 {
	p := make([]float64, len(logits))
	first := nll(logits, 0)
	for i := range p {
		p[i] = float64(logits[i]) - float64(logits[0]) - first
	}
	return p
}

// divergence is the Kullback-Leibler divergence of q from p, in nats: both are
// logarithms.
func divergence(p, q []float64) float64 {
	var sum float64
	for i := range p {
		sum += math.Exp(p[i]) * (p[i] - q[i])
	}
	return sum
}

// TestQuality says what int8 costs on the held-out text: `go test -v -run Quality`
// prints the figures of docs/benchmarks.md.
func TestQuality(t *testing.T) {
	ids := heldOut(t)
	exact, rounded := heldOutLogits(t, loadFable(t, 2), ids), heldOutLogits(t, loadFableAs(t, cpu.Int8, 2), ids)
	var each []float64
	var sum float64
	same := 0
	for i := range exact {
		p, q := logProbabilities(exact[i]), logProbabilities(rounded[i])
		d := divergence(p, q)
		each, sum = append(each, d), sum+d
		if slices.Index(p, slices.Max(p)) == slices.Index(q, slices.Max(q)) {
			same++
		}
	}
	slices.Sort(each)
	mean, bits, bitsExact := sum/float64(len(each)), meanNLL(rounded, ids)/math.Ln2, meanNLL(exact, ids)/math.Ln2
	t.Logf("bits a token: %.4f in bf16, %.4f in int8; KL divergence a token: %.5f, 99th percentile %.5f, worst %.5f; same likeliest token: %.1f%%",
		bitsExact, bits, mean, each[len(each)*99/100], each[len(each)-1], 100*float64(same)/float64(len(each)))
	if !(mean > 0 && mean < 0.002) {
		t.Errorf("KL divergence of int8 from bf16: %.5f nats a token, want less than 0.002", mean)
	}
	if math.Abs(bits-bitsExact) > 0.01 {
		t.Errorf("%.4f bits a token in int8, %.4f in bf16", bits, bitsExact)
	}
}
