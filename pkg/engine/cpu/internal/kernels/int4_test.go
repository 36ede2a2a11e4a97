package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// int4Group is how many elements of a weight's row share a scale in int4.
const int4Group = 32

// int4Values are what the codes stand for.
var int4Values = []float64{-127, -99, -78, -61, -47, -34, -22, -11, 0, 12, 23, 35, 49, 64, 82, 105}

// sparse values are mostly zero.
func sparse(r *rand.Rand) uint16 {
	if r.IntN(20) > 0 {
		return 0
	}
	return ordinary(r)
}

// TestProductsInt4 is TestProductsInt8 in int4.
func TestProductsInt4(t *testing.T) { productsIn(t, kernels.Int4) }

// unpacked reads n rows of k elements out of panels in int4: what their codes stand for,
// and the scales of their groups.
func unpacked(panels []byte, n, k int) (values, scales [][]float64) {
	groups := (k + kernels.Group - 1) / kernels.Group
	const scalesBytes = kernels.Group / int4Group * kernels.Lanes * 2
	const groupBytes = scalesBytes + kernels.Group*kernels.Lanes/2
	for row := range n {
		var v, s []float64
		lane := row % kernels.Lanes
		for g := range groups {
			group := panels[(row/kernels.Lanes*groups+g)*groupBytes:][:groupBytes]
			for part := range kernels.Group / int4Group {
				at := (part*kernels.Lanes + lane) * 2
				s = append(s, float64(math.Float32frombits(uint32(group[at])<<16|uint32(group[at+1])<<24)))
			}
			for i := range kernels.Group {
				code := group[scalesBytes+(i/8*kernels.Lanes+lane)*4+i%4]
				if i%8 >= 4 {
					code >>= 4
				}
				v = append(v, int4Values[code&15])
			}
		}
		values, scales = append(values, v), append(scales, s)
	}
	return values, scales
}

// nearest is the best that the table has for x under a scale.
func nearest(x, scale float64) float64 {
	least := math.Inf(1)
	for _, v := range int4Values {
		least = min(least, math.Abs(x-v*scale))
	}
	return least
}

// bestOf is the least sum of squared errors that a group has under 130 scales.
func bestOf(x []float64, largest float64) float64 {
	best := math.Inf(1)
	for to := 100.0; to <= 164; to++ {
		for _, s := range []float64{largest / to, -largest / to} {
			var sum float64
			for _, v := range x {
				d := nearest(v, s)
				sum += d * d
			}
			best = min(best, sum)
		}
	}
	return best
}

// TestPackInt4: each element has the code that is nearest under its group's scale, to
// half a step of the 255 that are told apart, and no scale among many would have a much
// smaller error. Zeros stay zeros, and what is not finite makes its group NaN.
func TestPackInt4(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 10))
	var errors, bests float64
	for round := range 40 / fewer {
		value := []func(*rand.Rand) uint16{ordinary, extreme, farApart, sparse, wild}[round%5]
		n, k := 1+r.IntN(40), 1+r.IntN(300)
		w := fill(r, n*k, value)
		panels, err := kernels.ProbePanels(kernels.Int4, w, n, k)
		if err != nil {
			t.Fatal(err)
		}
		values, scales := unpacked(panels.Bytes(), n, k)
		panels.Free()
		for row := range n {
			for first := 0; first < k; first += int4Group {
				x := make([]float64, min(int4Group, k-first))
				var largest float64
				for i := range x {
					x[i] = float64(math.Float32frombits(uint32(w[row*k+first+i]) << 16))
					largest = math.Max(largest, math.Abs(x[i])) // NaN stays
				}
				scale := scales[row][first/int4Group]
				switch {
				case !(largest <= math.MaxFloat64):
					if scale == scale {
						t.Fatalf("group of %v has scale %v", largest, scale)
					}
					continue
				case largest < math.Ldexp(1, -100):
					if scale != 0 {
						t.Fatalf("group of %v has scale %v", largest, scale)
					}
					continue
				}
				var got float64
				for i, v := range x {
					d := math.Abs(v - scale*values[row][first+i])
					if d > nearest(v, scale)+1.01*math.Abs(scale) || v == 0 && d != 0 {
						t.Fatalf("%v with scale %v becomes %v", v, scale, values[row][first+i])
					}
					got += d * d
				}
				if round%5 == 0 {
					errors, bests = errors+got, bests+bestOf(x, largest)
				}
			}
		}
	}
	t.Logf("squared error: %.4f of what the best of 130 scales has", errors/bests)
	if !(errors < 1.02*bests) {
		t.Errorf("squared error of ordinary groups: %v, the best of 130 scales has %v", errors, bests)
	}
}

// TestChainsInt4 compares the portable path with the definition: one chain over groups,
// of exact sums.
func TestChainsInt4(t *testing.T) {
	sets := kernels.Usable()
	r := rand.New(rand.NewPCG(11, 11))
	for round := range 60 {
		value := []func(*rand.Rand) uint16{ordinary, extreme, farApart, sparse}[round%4] // finite
		rows, n, k := 1+r.IntN(4), 1+r.IntN(40), 1+r.IntN(400)
		a, w := fill(r, rows*k, value), fill(r, n*k, value)
		got := make([]float32, rows*n)
		if err := sets[len(sets)-1].ProbeProductIn(kernels.Int4, a, rows, k, w, n, false, got); err != nil {
			t.Fatal(err)
		}
		panels, err := kernels.ProbePanels(kernels.Int4, w, n, k)
		if err != nil {
			t.Fatal(err)
		}
		values, scales := unpacked(panels.Bytes(), n, k)
		panels.Free()
		for i := range got {
			x, row := a[i/n*k:(i/n+1)*k], i%n
			var want, size float64
			for first := 0; first < k; first += kernels.Group {
				p, scaleP := quantized(x[first:min(first+kernels.Group, k)])
				for part := 0; part < len(p); part += int4Group {
					sum := 0.0
					for j := part; j < min(part+int4Group, len(p)); j++ {
						sum += p[j] * values[row][first+j]
					}
					scale := float64(scaleP * float32(scales[row][(first+part)/int4Group]))
					want += sum * scale
					size += math.Abs(sum * scale)
				}
			}
			if math.Abs(float64(got[i])-want) > 1e-6*size+1e-30 { // denormal products of scales are zero
				t.Fatalf("round %d: output %d is %v, want %v", round, i, got[i], want)
			}
		}
	}
}
