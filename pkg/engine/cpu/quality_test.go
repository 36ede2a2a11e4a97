package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// logProbabilities are those of all tokens.
func logProbabilities(logits []float32) []float64 {
	p := make([]float64, len(logits))
	first := enginetest.NLL(logits, 0)
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

// quality is what other logits lose, over a text.
type quality struct {
	bits, bitsExact float64 // a token
	// mean, high and worst are the mean, the 99th percentile and the largest of the
	// tokens' divergences, in nats.
	mean, high, worst float64
	same              float64 // share of tokens that have the same likeliest successor
}

func qualityOf(exact, rounded [][]float32, ids []int32) quality {
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
	n := len(each)
	return quality{
		bits: meanNLL(rounded, ids) / math.Ln2, bitsExact: meanNLL(exact, ids) / math.Ln2,
		mean: sum / float64(n), high: each[n*99/100], worst: each[n-1], same: float64(same) / float64(n),
	}
}

func (q quality) log(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: bits a token %.4f, in bf16 %.4f; KL divergence a token: %.5f, 99th percentile %.5f, worst %.5f; same likeliest token: %.1f%%",
		what, q.bits, q.bitsExact, q.mean, q.high, q.worst, 100*q.same)
}

// TestQuality says what int8 and int4 cost on the held-out text: `go test -v -run
// Quality` prints the figures of docs/benchmarks.md. Int4 is compared with plain
// rounding to 4 bits, of all matrices, and of the layers only.
func TestQuality(t *testing.T) {
	longtest.Only(t)
	ids := heldOut(t)
	exact := heldOutLogits(t, loadFable(t, 2), cpu.KVBF16, ids)
	of := func(what string, w *cpu.Weights) quality {
		t.Helper()
		q := qualityOf(exact, heldOutLogits(t, w, cpu.KVBF16, ids), ids)
		q.log(t, what)
		return q
	}
	int8, int4 := of("int8", loadFableAs(t, cpu.Int8, 2)), of("int4", loadFableAs(t, cpu.Int4, 2))
	if !(int8.mean > 0 && int8.mean < 0.002) {
		t.Errorf("KL divergence of int8 from bf16: %.5f nats a token, want less than 0.002", int8.mean)
	}
	if math.Abs(int8.bits-int8.bitsExact) > 0.01 {
		t.Errorf("%.4f bits a token in int8, %.4f in bf16", int8.bits, int8.bitsExact)
	}
	plain, layers := math.Inf(1), math.Inf(1)
	for _, by := range []roundedTo{sevenths, eighths} {
		plain = min(plain, of("all matrices rounded to "+by.name, loadRounded(t, by, true)).mean)
		layers = min(layers, of("layers rounded to "+by.name, loadRounded(t, by, false)).mean)
	}
	t.Logf("int4 diverges by %.2f of plain rounding of all matrices, %.2f of plain rounding of the layers", int4.mean/plain, int4.mean/layers)
	if !(int4.mean < plain/2) {
		t.Errorf("KL divergence of int4 from bf16: %.5f nats a token, want at most half of the %.5f of plain rounding", int4.mean, plain)
	}
	if !(int4.mean < layers) {
		t.Errorf("KL divergence of int4 from bf16: %.5f nats a token, want less than the %.5f of plain rounding of the layers", int4.mean, layers)
	}
}

// TestQualityOfKV says what keys and values in int8 cost on the held-out text, alone and
// on top of weights in int8, in the same words as TestQuality. Every token looks at the
// others of its window from their codes.
func TestQualityOfKV(t *testing.T) {
	ids := heldOut(t)
	exact := heldOutLogits(t, loadFable(t, 2), cpu.KVBF16, ids)
	for _, c := range []struct {
		kind cpu.WeightType
		most float64
	}{{cpu.BF16, 0.0005}, {cpu.Int8, 0.002}} {
		q := qualityOf(exact, heldOutLogits(t, loadFableAs(t, c.kind, 2), cpu.KVInt8, ids), ids)
		q.log(t, fmt.Sprintf("KV in int8, weights in %s", c.kind))
		if !(q.mean > 0 && q.mean < c.most) {
			t.Errorf("weights in %s: KL divergence of KV in int8 from bf16: %.5f nats a token, want less than %.5f", c.kind, q.mean, c.most)
		}
		if math.Abs(q.bits-q.bitsExact) > 0.01 {
			t.Errorf("weights in %s: %.4f bits a token with KV in int8, %.4f in bf16", c.kind, q.bits, q.bitsExact)
		}
	}
}
