package kernels_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// against runs a test for every fast implementation beside the portable one.
func against(t *testing.T, test func(t *testing.T, fast, portable kernels.Set, r *rand.Rand)) {
	sets := kernels.Usable()
	portable := sets[len(sets)-1]
	if portable.Name() != "portable" {
		t.Fatalf("the last implementation is %q", portable.Name())
	}
	for i, s := range sets[:len(sets)-1] {
		t.Run(s.Name(), func(t *testing.T) { test(t, s, portable, rand.New(rand.NewPCG(7, uint64(i)))) })
	}
}

func isNaN16(x uint16) bool { return x&0x7fff > 0x7f80 }

func same16(t *testing.T, what string, got, want []uint16) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] && !(isNaN16(got[i]) && isNaN16(want[i])) {
			t.Fatalf("%s: element %d is %#04x, portable %#04x", what, i, got[i], want[i])
		}
	}
}

func same32(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		g, w := got[i], want[i]
		if math.Float32bits(g) != math.Float32bits(w) && !(g != g && w != w) {
			t.Fatalf("%s: element %d is %x, portable %x", what, i, g, w)
		}
	}
}

func bf16(x float64) uint16 { return uint16(math.Float32bits(float32(x)) >> 16) }

// ordinary values look like activations.
func ordinary(r *rand.Rand) uint16 { return bf16(r.NormFloat64()) }

// tiny values have products near the least normal number.
func tiny(r *rand.Rand) uint16 {
	return uint16(r.IntN(2))<<15 | uint16(58+r.IntN(10))<<7 | uint16(r.IntN(128))
}

// wild values are any bits: denormals, infinities and NaN among them.
func wild(r *rand.Rand) uint16 {
	switch r.IntN(8) {
	case 0:
		return uint16(r.IntN(2))<<15 | uint16(r.IntN(128)) // zero or denormal
	case 1:
		return []uint16{0x7f80, 0xff80, 0x7fc0, 0xff81, 0x7f7f, 0x0080, 0x8000}[r.IntN(7)]
	}
	return uint16(r.Uint32())
}

func fill(r *rand.Rand, n int, value func(*rand.Rand) uint16) []uint16 {
	x := make([]uint16, n)
	for i := range x {
		x[i] = value(r)
	}
	return x
}

func TestProducts(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 150 {
			value := []func(*rand.Rand) uint16{ordinary, tiny, wild}[round%3]
			rows, n, k := 1+r.IntN(15), 1+r.IntN(150), 1+r.IntN(70)
			a, w, up := fill(r, rows*k, value), fill(r, n*k, value), fill(r, n*k, value)
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			for i := range got {
				got[i] = math.Float32frombits(uint32(ordinary(r)) << 16)
				want[i] = got[i]
			}
			if err := fast.ProbeProduct(a, rows, k, w, n, got); err != nil {
				t.Fatal(err)
			}
			if err := portable.ProbeProduct(a, rows, k, w, n, want); err != nil {
				t.Fatal(err)
			}
			same32(t, "product", got, want)
			got16, want16 := make([]uint16, rows*n), make([]uint16, rows*n)
			if err := fast.ProbeSwiGLU(a, rows, k, w, up, n, got16); err != nil {
				t.Fatal(err)
			}
			if err := portable.ProbeSwiGLU(a, rows, k, w, up, n, want16); err != nil {
				t.Fatal(err)
			}
			same16(t, "SwiGLU", got16, want16)
		}
	})
}

// TestPairs looks at chains of few pairs, where a difference in rounding,
// flushing or order cannot hide under later terms: millions of multiply-adds.
func TestPairs(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 60 {
			value := []func(*rand.Rand) uint16{ordinary, tiny, wild}[round%3]
			const rows, n = 64, 64
			k := 2 + 2*r.IntN(3)
			a, w := fill(r, rows*k, value), fill(r, n*k, value)
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			if err := fast.ProbeProduct(a, rows, k, w, n, got); err != nil {
				t.Fatal(err)
			}
			if err := portable.ProbeProduct(a, rows, k, w, n, want); err != nil {
				t.Fatal(err)
			}
			same32(t, "pairs", got, want)
		}
	})
}

func floats(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

func TestNorm(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for range 300 {
			n := 1 + r.IntN(100)
			x, w := floats(r, n, math.Pow(10, float64(r.IntN(40)-20))), floats(r, n, 1)
			same16(t, "norm", fast.ProbeNorm(x, w, 1e-5), portable.ProbeNorm(x, w, 1e-5))
		}
	})
}

func TestExp(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), 87, -87, 87.00001, -87.00001, 1e9, -1e9,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-30, -1e-30, 0.5, -0.5}
	for y := float32(-90); y < 90; y += 0.0173 {
		x = append(x, y)
	}
	against(t, func(t *testing.T, fast, portable kernels.Set, _ *rand.Rand) {
		same32(t, "exp", fast.ProbeExp(x), portable.ProbeExp(x))
	})
	sets := kernels.Usable()
	for i, got := range sets[len(sets)-1].ProbeExp(x) {
		if want := math.Exp(float64(x[i])); math.Abs(float64(x[i])) <= 87 && math.Abs(float64(got)-want) > 2e-7*want {
			t.Errorf("exp(%g) = %g, want %g", x[i], got, want)
		}
	}
}

// shape draws head counts and sizes, odd ones among them.
func shape(r *rand.Rand) kernels.Shape {
	kv := 1 + r.IntN(3)
	s := kernels.Shape{Heads: kv * (1 + r.IntN(4)), KVHeads: kv, HeadSize: 2 * (1 + r.IntN(40)), BlockTokens: 16 << r.IntN(5)}
	if r.IntN(3) == 0 {
		s.HeadSize = []int{64, 80, 96, 128}[r.IntN(4)]
	}
	if r.IntN(10) == 0 {
		s.Heads = kv * 53 // more than an item's rows
	}
	return s
}

// kvFormats are how keys and values can be kept.
var kvFormats = []kernels.Format{kernels.Pairs, kernels.Int8}

func TestRotate(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 100 {
			s := shape(r)
			s.KV = kvFormats[round%2]
			qkv := floats(r, (s.Heads+2*s.KVHeads)*s.HeadSize, 1)
			cos, sin := floats(r, s.HeadSize/2, 1), floats(r, s.HeadSize/2, 1)
			got, mirror, want := make([]byte, s.SliceBytes()), make([]byte, s.SliceBytes()), make([]byte, s.SliceBytes())
			token := r.IntN(s.BlockTokens)
			same16(t, "queries", fast.ProbeRotate(s, qkv, cos, sin, got, mirror, token), portable.ProbeRotate(s, qkv, cos, sin, want, nil, token))
			if !bytes.Equal(got, want) || !bytes.Equal(mirror, want) {
				t.Fatal("keys or values differ")
			}
			clear(want)
			portable.ProbeRotate(s, qkv, cos, sin, make([]byte, s.SliceBytes()), want, token)
			if !bytes.Equal(got, want) {
				t.Fatal("the portable path writes other keys or values into the second slice")
			}
		}
	})
}

// TestAttention fills what lies behind the sequence, and what is before the first
// query's window, with NaN and with other garbage: neither may change a bit.
func TestAttention(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 80 / fewer {
			s := shape(r)
			s.KV = kvFormats[round/8%2]
			tokens := 1 + r.IntN(12)
			start := r.IntN(100)
			if round%8 < 2 { // with a window and without
				start += 230 + r.IntN(300) // several splits
			}
			window := 0
			if round%2 == 1 {
				window = 1 + r.IntN([]int{3, 40, 300}[r.IntN(3)])
			}
			n := (start + tokens + s.BlockTokens - 1) / s.BlockTokens
			blocks := make([]kvcache.BlockID, n)
			for i, b := range r.Perm(n) {
				blocks[i] = kvcache.BlockID(b)
			}
			pages := func(stale uint16) []byte {
				p := make([]byte, n*s.SliceBytes())
				for i := range p {
					p[i] = byte(stale >> (8 * (i % 2)))
				}
				return p
			}
			nan, garbage := pages(0x7fc1), pages(0x4321)
			zero := make([]float32, s.HeadSize/2)
			one := floats(r, s.HeadSize/2, 0)
			for i := range one {
				one[i] = 1
			}
			for position := range start + tokens {
				if window > 0 && position <= start-window {
					continue
				}
				qkv := floats(r, (s.Heads+2*s.KVHeads)*s.HeadSize, 1)
				at := int(blocks[position/s.BlockTokens]) * s.SliceBytes()
				for _, p := range [][]byte{nan, garbage} {
					portable.ProbeRotate(s, qkv, one, zero, p[at:at+s.SliceBytes()], nil, position%s.BlockTokens)
				}
			}
			q := fill(r, tokens*s.Heads*s.HeadSize, ordinary)
			want := portable.ProbeAttention(s, q, nan, blocks, start, window, 0.25)
			for i, x := range want {
				if isNaN16(x) {
					t.Fatalf("%+v: output %d is not a number", s, i)
				}
			}
			same16(t, "stale garbage, portable", portable.ProbeAttention(s, q, garbage, blocks, start, window, 0.25), want)
			same16(t, "stale NaN", fast.ProbeAttention(s, q, nan, blocks, start, window, 0.25), want)
			same16(t, "stale garbage", fast.ProbeAttention(s, q, garbage, blocks, start, window, 0.25), want)
			parts := 1 + r.IntN(4) // more than there are splits, among others
			if round%4 == 0 {      // the slow one, once for every fast one as it is
				same16(t, "divided, portable", portable.ProbeDivided(s, q, nan, blocks, start, window, 0.25, parts), want)
			}
			same16(t, "divided", fast.ProbeDivided(s, q, nan, blocks, start, window, 0.25, parts), want)
		}
	})
}

// TestLeastNormal asks what becomes of sums that a 24-bit rounding puts just
// below the least normal number: the edge where "flush to zero" has two meanings.
func TestLeastNormal(t *testing.T) {
	var a, w []uint16
	var want []float32
	least := math.Ldexp(1, -126)
	add := func(x, y float64, sum float64) {
		// Odd element first: it makes the least normal number, the even one pulls.
		a = append(a, bf16(x), bf16(math.Ldexp(1, -63)))
		w = append(w, bf16(y), bf16(math.Ldexp(1, -63)))
		want = append(want, float32(sum))
	}
	add(math.Ldexp(-1, -76), math.Ldexp(1, -76), least)                    // 1/4 of 2^-150: rounds back
	add(math.Ldexp(-1, -76), math.Ldexp(1, -75), least)                    // 1/2: the tie is even, back
	add(math.Ldexp(-1.25, -76), math.Ldexp(1, -75), 0)                     // over 1/2: below, flushed
	add(math.Ldexp(-1.5, -76), math.Ldexp(1, -75), 0)                      // 3/4
	add(math.Ldexp(-1, -75), math.Ldexp(1, -75), 0)                        // 1
	add(math.Ldexp(1, -75), math.Ldexp(1, -75), least)                     // above: a tie, to even
	add(math.Ldexp(1, -74), math.Ldexp(1, -74), least+math.Ldexp(1, -148)) // exact
	for _, s := range kernels.Usable() {
		n := len(want)
		got := make([]float32, n)
		for i := range n {
			if err := s.ProbeProduct(a[2*i:2*i+2], 1, 2, w[2*i:2*i+2], 1, got[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: sum %d is %x, want %x", s.Name(), i, got[i], want[i])
			}
		}
	}
}
