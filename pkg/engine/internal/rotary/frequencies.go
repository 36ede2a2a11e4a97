package rotary

import (
	"math"
	"math/big"

	"github.com/tandem-serving/tandem/pkg/model"
)

// frequencies are the angles, in radians a token, of the rotary embedding's pairs
// of dimensions. The unscaled ones are θ^(−2i/size), rounded to float32 once, so
// that no machine's power function can make a difference. Scaling follows Hugging
// Face's modeling_rope_utils: each of its float32 operations is rounded by itself.
func frequencies(theta float64, headSize int, scaling model.RopeScaling) []float32 {
	f := make([]float32, headSize/2)
	base := ln(theta)
	for i := range f {
		x := wide().Mul(base, wide().SetInt64(int64(-2*i)))
		f[i], _ = exp(x.Quo(x, wide().SetInt64(int64(headSize)))).Float32()
	}
	switch scaling.Kind {
	case model.RopeLinear:
		for i := range f {
			f[i] /= float32(scaling.Factor)
		}
	case model.RopeLlama3:
		scaleLlama3(f, scaling)
	case model.RopeYaRN:
		scaleYaRN(f, theta, scaling)
	}
	return f
}

// scaleLlama3 divides the frequencies of long waves, leaves those of short ones,
// and passes smoothly between (Llama 3.1).
func scaleLlama3(f []float32, s model.RopeScaling) {
	longest := float32(float64(s.OriginalContext) / s.LowFreqFactor)
	shortest := float32(float64(s.OriginalContext) / s.HighFreqFactor)
	factor, low, between := float32(s.Factor), float32(s.LowFreqFactor), float32(s.HighFreqFactor-s.LowFreqFactor)
	for i, unscaled := range f {
		wave := float32(float32(1/unscaled) * float32(2*math.Pi))
		switch {
		case wave > longest:
			f[i] = unscaled / factor
		case wave >= shortest:
			waves := float32(float32(1/wave) * float32(s.OriginalContext)) // in the original context
			smooth := float32(float32(waves-low) / between)
			f[i] = float32(float32(float32(1-smooth)*unscaled)/factor) + float32(smooth*unscaled)
		}
	}
}

// scaleYaRN divides the frequencies of dimensions that turn few times in the
// original context, leaves those that turn often, and passes linearly between
// (Peng et al., YaRN).
func scaleYaRN(f []float32, theta float64, s model.RopeScaling) {
	size := float64(2 * len(f))
	base, _ := ln(theta).Float64()
	// turning is the dimension that turns so many times.
	turning := func(rotations float64) float64 {
		x, _ := ln(float64(s.OriginalContext) / float64(float64(2*math.Pi)*rotations)).Float64()
		return float64(size*x) / float64(2*base)
	}
	first, last := turning(s.BetaFast), turning(s.BetaSlow)
	if s.Truncate {
		first, last = math.Floor(first), math.Ceil(last)
	}
	first, last = max(first, 0), min(last, size-1)
	if first == last {
		last += 0.001
	}
	for i, unscaled := range f {
		ramp := float32(float32(float32(i)-float32(first)) / float32(last-first))
		keep := 1 - min(max(ramp, 0), 1)
		f[i] = float32(float32(unscaled/float32(s.Factor))*float32(1-keep)) + float32(unscaled*keep)
	}
}

// wideBits is the precision in which logarithms and exponentials are computed
// before they are rounded to what is asked for.
const wideBits = 160

func wide() *big.Float { return new(big.Float).SetPrec(wideBits) }

// ln is the logarithm of a positive, finite x.
func ln(x float64) *big.Float {
	fraction, exponent := math.Frexp(x)
	y := wide().SetFloat64(fraction)
	z := wide().Add(y, wide().SetInt64(1))
	z.Quo(y.Sub(y, wide().SetInt64(1)), z)
	two := wide().Quo(wide().SetInt64(1), wide().SetInt64(3)) // ln 2 = 2 atanh(1/3)
	two.Mul(atanh(two), wide().SetInt64(int64(exponent)))
	sum := two.Add(two, atanh(z))
	return sum.Mul(sum, wide().SetInt64(2))
}

// atanh is the inverse hyperbolic tangent of z, whose size is 1/3 at most.
func atanh(z *big.Float) *big.Float {
	sum, power, square := wide().Set(z), wide().Set(z), wide().Mul(z, z)
	for n := int64(3); n < 2*wideBits; n += 2 { // each term is a ninth of the last
		power.Mul(power, square)
		sum.Add(sum, wide().Quo(power, wide().SetInt64(n)))
	}
	return sum
}

// exp is e to the power of x, |x| below 2^10.
func exp(x *big.Float) *big.Float {
	const halvings, terms = 14, 32 // |x/2^14| < 2^-4
	y := wide().SetMantExp(x, -halvings)
	sum, term := wide().SetInt64(1), wide().SetInt64(1)
	for n := int64(1); n <= terms; n++ {
		term.Quo(term.Mul(term, y), wide().SetInt64(n))
		sum.Add(sum, term)
	}
	for range halvings {
		sum.Mul(sum, sum)
	}
	return sum
}
