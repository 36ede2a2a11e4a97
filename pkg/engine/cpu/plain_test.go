package cpu_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// plainMatrix is a tensor in float64.
type plainMatrix struct {
	rows, columns int
	at            []float64
}

func plain(t *testing.T, tensor model.Tensor) plainMatrix {
	t.Helper()
	narrow := make([]float32, tensor.Elements())
	if err := tensor.Float32s(narrow, 0); err != nil {
		t.Fatal(err)
	}
	m := plainMatrix{tensor.Shape[0], tensor.Elements() / tensor.Shape[0], make([]float64, len(narrow))}
	for i, x := range narrow {
		m.at[i] = float64(x)
	}
	return m
}

func (m plainMatrix) times(x []float64) []float64 {
	y := make([]float64, m.rows)
	for i := range y {
		for j, v := range x {
			y[i] += m.at[i*m.columns+j] * v
		}
	}
	return y
}

func plainNorm(x []float64, weight plainMatrix, eps float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+eps) * weight.at[i]
	}
	return y
}

// plainRotate rotates every head of x for a position.
func plainRotate(x []float64, size, position int, theta float64) {
	for h := 0; h < len(x); h += size {
		for i := range size / 2 {
			sin, cos := math.Sincos(float64(position) * math.Pow(theta, -2*float64(i)/float64(size)))
			a, b := x[h+i], x[h+i+size/2]
			x[h+i], x[h+i+size/2] = a*cos-b*sin, b*cos+a*sin
		}
	}
}

// forward is the Llama architecture written down directly, in float64: the
// logits after each token.
func forward(t *testing.T, m *model.Model, tokens []int32) [][]float64 {
	t.Helper()
	output := plain(t, m.Output())
	var logits [][]float64
	for _, state := range hidden(t, m, tokens) {
		logits = append(logits, output.times(state))
	}
	return logits
}

// hidden is forward up to the output matrix.
func hidden(t *testing.T, m *model.Model, tokens []int32) [][]float64 {
	t.Helper()
	s := m.Spec()
	embedding, last := plain(t, m.Embedding()), plain(t, m.FinalNorm())
	x := make([][]float64, len(tokens))
	for p, token := range tokens {
		x[p] = append([]float64(nil), embedding.at[int(token)*s.HiddenSize:][:s.HiddenSize]...)
	}
	for layer := range s.Layers {
		plainLayer(t, s, m.Layer(layer), x)
	}
	for p := range x {
		x[p] = plainNorm(x[p], last, float64(s.RMSNormEps))
	}
	return x
}

func plainLayer(t *testing.T, s model.Spec, w model.LayerWeights, x [][]float64) {
	wq, wk, wv, wo := plain(t, w.Q), plain(t, w.K), plain(t, w.V), plain(t, w.O)
	gate, up, down := plain(t, w.Gate), plain(t, w.Up), plain(t, w.Down)
	attnNorm, ffnNorm := plain(t, w.AttnNorm), plain(t, w.FFNNorm)
	add := func(to, from []float64) {
		for i := range to {
			to[i] += from[i]
		}
	}
	var keys, values [][]float64
	for p := range x {
		n := plainNorm(x[p], attnNorm, float64(s.RMSNormEps))
		q, k := wq.times(n), wk.times(n)
		plainRotate(q, s.HeadSize, p, s.RopeTheta)
		plainRotate(k, s.HeadSize, p, s.RopeTheta)
		keys, values = append(keys, k), append(values, wv.times(n))
		add(x[p], wo.times(plainAttention(s, q, keys, values)))
		n = plainNorm(x[p], ffnNorm, float64(s.RMSNormEps))
		g, u := gate.times(n), up.times(n)
		for i := range g {
			g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
		}
		add(x[p], down.times(g))
	}
}

func plainAttention(s model.Spec, q []float64, keys, values [][]float64) []float64 {
	mixed := make([]float64, len(q))
	for h := range s.Heads {
		at := h / (s.Heads / s.KVHeads) * s.HeadSize
		var sum float64
		weights := make([]float64, len(keys))
		for j, k := range keys {
			for d := range s.HeadSize {
				weights[j] += q[h*s.HeadSize+d] * k[at+d]
			}
			weights[j] = math.Exp(weights[j] / math.Sqrt(float64(s.HeadSize)))
			sum += weights[j]
		}
		for j, v := range values {
			for d := range s.HeadSize {
				mixed[h*s.HeadSize+d] += weights[j] / sum * v[at+d]
			}
		}
	}
	return mixed
}
