// Package rotary computes the angles of the rotary embedding, to the last bit the
// same on every machine, for every engine that computes them.
//
// Only engines import it. It starts no goroutines.
package rotary

import (
	"math"

	"github.com/tandem-serving/tandem/pkg/model"
)

// Embedding gives the angles of the rotary embedding (Su et al., RoFormer), in the
// half-split form of Hugging Face's Llama. Every operation is rounded by itself:
// a Go compiler may fuse a product and a sum on some processors, and that would
// make two machines disagree. It does not change.
type Embedding struct {
	frequencies []float32
	factor      float32 // of cosines and sines
}

// New is the embedding of a model.
func New(spec model.Spec) Embedding {
	r := Embedding{frequencies(spec.RopeTheta, spec.HeadSize, spec.RopeScaling), 1}
	if spec.RopeScaling.Kind == model.RopeYaRN {
		r.factor = float32(spec.RopeScaling.AttentionFactor)
	}
	return r
}

// Fill writes the cosines and sines of `tokens` positions from start on, one
// group of HeadSize/2 a token.
func (r Embedding) Fill(cos, sin []float32, start, tokens int) {
	n := len(r.frequencies)
	for t := range tokens {
		position := float64(start + t)
		for i, f := range r.frequencies {
			s, c := sincos(position * float64(f)) // exact: 24 bits times at most 29
			cos[t*n+i], sin[t*n+i] = float32(c)*r.factor, float32(s)*r.factor
		}
	}
}

// sincos is Cephes' sin and cos (S. L. Moshier) for angles from 0 to 2^29, with
// each operation rounded to float64. Its error is far below half a unit of
// float32, to which the results are rounded.
func sincos(x float64) (sin, cos float64) {
	const ( // pi/4 in three parts, the first two with zeros at their ends
		part1 = 7.85398125648498535156e-1
		part2 = 3.77489470793079817668e-8
		part3 = 2.69515142907905952645e-15
	)
	octant := uint64(float64(x * (4 / math.Pi)))
	octant += octant & 1
	y := float64(octant)
	z := float64(x - float64(y*part1))
	z = float64(z - float64(y*part2))
	z = float64(z - float64(y*part3))
	zz := float64(z * z)
	p := float64(zz*1.58962301576546568060e-10) - 2.50507477628578072866e-8
	p = float64(zz*p) + 2.75573136213857245213e-6
	p = float64(zz*p) - 1.98412698295895385996e-4
	p = float64(zz*p) + 8.33333333332211858878e-3
	p = float64(zz*p) - 1.66666666666666307295e-1
	sin = z + float64(float64(z*zz)*p)
	p = float64(zz*-1.13585365213876817300e-11) + 2.08757008419747316778e-9
	p = float64(zz*p) - 2.75573141792967388112e-7
	p = float64(zz*p) + 2.48015872888517045348e-5
	p = float64(zz*p) - 1.38888888888730564116e-3
	p = float64(zz*p) + 4.16666666666665929218e-2
	cos = 1 - float64(0.5*zz) + float64(float64(zz*zz)*p)
	switch octant % 8 {
	case 2:
		sin, cos = cos, -sin
	case 4:
		sin, cos = -sin, -cos
	case 6:
		sin, cos = -cos, sin
	}
	return sin, cos
}
