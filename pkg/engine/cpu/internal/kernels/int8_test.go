package kernels_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// extreme values are the largest of their group, of either sign: int8 sums at their
// bounds.
func extreme(r *rand.Rand) uint16 { return bf16(float64(1 - 2*r.IntN(2))) }

// far apart are values some of which are too small for their group's scale, or for any.
func farApart(r *rand.Rand) uint16 { return bf16(r.NormFloat64() * math.Pow(2, float64(-r.IntN(140)))) }

var int8Values = []func(*rand.Rand) uint16{ordinary, extreme, farApart, wild}

// TestPathsInt8: sets with AVX-512 multiply with VNNI where the processor has it, the
// one with AMX in tiles, and the others do not, so that a processor with all of them
// tests every path.
func TestPathsInt8(t *testing.T) {
	for _, s := range kernels.Usable() {
		want := s.Name()
		if strings.HasPrefix(want, "avx512") {
			want = "avx2"
			switch {
			case s.Name() == "avx512amx":
				want = "amx"
			case cpu.X86.HasAVX512VNNI:
				want = "vnni"
			}
		}
		if got := s.Int8(); got != want {
			t.Errorf("%s multiplies int8 with %s, want %s", s.Name(), got, want)
		}
	}
}

// TestProductsInt8 compares all modes with the portable path, on shapes that fill
// neither groups nor panels nor units.
func TestProductsInt8(t *testing.T) { productsIn(t, kernels.Int8) }

func productsIn(t *testing.T, format kernels.Format) {
	t.Helper()
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 80 / fewer {
			fast := fast.InTurn(r.IntN(2) == 0)
			value := int8Values[round/20%len(int8Values)]
			rows, n, k := 1+round%20, 1+r.IntN(100), 1+r.IntN(400)
			if rows == 19 {
				rows, k = 1, kernels.Group*(1+r.IntN(3))
			}
			if rows == 20 { // more than any path takes at once
				rows, n = 90+r.IntN(110), 1+r.IntN(20)
			}
			a, w, up := fill(r, rows*k, value), fill(r, n*k, value), fill(r, n*k, value)
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			for i := range got {
				got[i] = math.Float32frombits(uint32(ordinary(r)) << 16)
				want[i] = got[i]
			}
			add := round%2 == 0
			if err := fast.ProbeProductIn(format, a, rows, k, w, n, add, got); err != nil {
				t.Fatal(err)
			}
			if err := portable.ProbeProductIn(format, a, rows, k, w, n, add, want); err != nil {
				t.Fatal(err)
			}
			same32(t, "product", got, want)
			got16, want16 := make([]uint16, rows*n), make([]uint16, rows*n)
			if err := fast.ProbeSwiGLUIn(format, a, rows, k, w, up, n, got16); err != nil {
				t.Fatal(err)
			}
			if err := portable.ProbeSwiGLUIn(format, a, rows, k, w, up, n, want16); err != nil {
				t.Fatal(err)
			}
			same16(t, "SwiGLU", got16, want16)
		}
	})
}

// quantized is what decision 0011 says of a group, in float32 and without C.
func quantized(x []uint16) (values []float64, scale float32) {
	values = make([]float64, len(x))
	var largest float32
	for _, v := range x {
		f := math.Float32frombits(uint32(v) << 16)
		if f != f || math.IsInf(float64(f), 0) {
			return values, float32(math.NaN())
		}
		largest = max(largest, float32(math.Abs(float64(f))))
	}
	if float64(largest) < math.Ldexp(1, -100) {
		return values, 0
	}
	reciprocal := 127 / largest
	for i, v := range x {
		scaled := math.Float32frombits(uint32(v)<<16) * reciprocal
		values[i] = math.RoundToEven(float64(scaled))
	}
	return values, largest / 127
}

// TestQuantize: each path gives the definition's values and scales.
func TestQuantize(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, s := range kernels.Usable() {
		for round := range 400 {
			x := fill(r, 1+r.IntN(300), int8Values[round%len(int8Values)])
			if round%7 == 0 {
				x[r.IntN(len(x))] = 0x7f80
			}
			values, scales := s.ProbeQuantize(x)
			for g := range scales {
				group := x[g*kernels.Group : min((g+1)*kernels.Group, len(x))]
				want, scale := quantized(group)
				if math.Float32bits(scales[g]) != math.Float32bits(scale) && (scales[g] == scales[g] || scale == scale) {
					t.Fatalf("%s: scale %x, want %x", s.Name(), scales[g], scale)
				}
				for i := range kernels.Group {
					expected := 0.0
					if i < len(group) {
						expected = want[i]
					}
					if got := float64(values[g*kernels.Group+i]); got != expected {
						t.Fatalf("%s: %#04x becomes %v, want %v", s.Name(), x[min(g*kernels.Group+i, len(x)-1)], got, expected)
					}
				}
			}
		}
	}
}

// TestChainsInt8 compares the portable path with the definition: one chain over
// groups, of exact sums.
func TestChainsInt8(t *testing.T) {
	sets := kernels.Usable()
	r := rand.New(rand.NewPCG(9, 9))
	for round := range 60 {
		value := int8Values[round%3] // finite
		rows, n, k := 1+r.IntN(4), 1+r.IntN(40), 1+r.IntN(400)
		a, w := fill(r, rows*k, value), fill(r, n*k, value)
		got := make([]float32, rows*n)
		if err := sets[len(sets)-1].ProbeProductIn(kernels.Int8, a, rows, k, w, n, false, got); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			x, y := a[i/n*k:(i/n+1)*k], w[i%n*k:(i%n+1)*k]
			var want, size float64
			for first := 0; first < k; first += kernels.Group {
				last := min(first+kernels.Group, k)
				p, scaleP := quantized(x[first:last])
				q, scaleQ := quantized(y[first:last])
				sum := 0.0
				for j := range p {
					sum += p[j] * q[j]
				}
				want += sum * float64(scaleP*scaleQ)
				size += math.Abs(sum * float64(scaleP*scaleQ))
			}
			if math.Abs(float64(got[i])-want) > 1e-6*size+1e-30 { // denormal products of scales are zero
				t.Fatalf("round %d: output %d is %v, want %v", round, i, got[i], want)
			}
		}
	}
}
