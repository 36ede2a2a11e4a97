package kernels_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

func TestEmbed(t *testing.T) {
	b := newBench(t)
	const rows, vocabulary, width = 9, 30, 300
	ld := padded(width, kernels.KBlock)
	table := b.matrix(vocabulary, width, ld)
	tokens := make([]int32, rows)
	for i := range tokens {
		tokens[i] = int32(b.random.IntN(vocabulary))
	}
	args := kernels.EmbedArgs{
		Counts: put(b, []kernels.Counts{{Rows: rows}}), Tokens: put(b, tokens), Table: put(b, table), X: put(b, make([]float32, rows*ld)),
		LdTable: int64(ld), LdX: int64(ld), Width: width,
	}
	norm := newNorm(b, rows, width)
	args.Norm = norm.Deferred
	b.run(func(p *driver.Program) { b.set.Embed(p, rows+3, args) })
	x := get[float32](b, args.X, rows*ld)
	for i, x := range x {
		if want := wide(table[int(tokens[i/ld])*ld+i%ld]); float64(x) != want {
			t.Fatalf("row %d, element %d: got %v, want %v", i/ld, i%ld, x, want)
		}
	}
	norm.compareRows(t, x, ld, 0, rows)
}

func TestNorm(t *testing.T) {
	b := newBench(t)
	const rows, width, eps = 5, 2500, 1e-5
	ld := padded(width, kernels.KBlock)
	x, weight := make([]float32, rows*ld), b.floats(width)
	for row := range rows {
		copy(x[row*ld:], b.floats(width))
	}
	index := []int32{4, 0, 0, 3, 1}
	args := kernels.NormArgs{
		Count: put(b, []int32{rows}), Index: put(b, index), X: put(b, x), Weight: put(b, weight), Out: put(b, make([]uint16, rows*ld)),
		LdX: int64(ld), LdOut: int64(ld), Width: width, Eps: eps,
	}
	b.run(func(p *driver.Program) { b.set.Norm(p, rows, args) })
	for i, got := range get[uint16](b, args.Out, rows*ld) {
		row, sum := x[int(index[i/ld])*ld:], 0.0
		for _, v := range row[:width] {
			sum += float64(v) * float64(v)
		}
		want := 0.0
		if i%ld < width {
			want = float64(row[i%ld]) / math.Sqrt(sum/width+eps) * float64(weight[i%ld])
		}
		// The sum's roundings, and that to bf16.
		near(t, "norm", wide(got), want, math.Abs(want)*(0x1p-8+width*0x1p-30))
	}
}

func TestGather(t *testing.T) {
	b := newBench(t)
	const rows, bytes = 6, 16 * 70
	from := bytesOf(b.floats(20 * bytes / 4))
	index := []int32{19, 3, 3, 0, 7, 12}
	args := kernels.GatherArgs{
		Count: put(b, []int32{rows}), Index: put(b, index), From: put(b, from), To: put(b, make([]byte, rows*bytes)), RowBytes: bytes,
	}
	b.run(func(p *driver.Program) { b.set.Gather(p, rows+2, args) })
	to := get[byte](b, args.To, rows*bytes)
	for row, i := range index {
		if !slices.Equal(to[row*bytes:(row+1)*bytes], from[int(i)*bytes:(int(i)+1)*bytes]) {
			t.Errorf("row %d is not row %d", row, i)
		}
	}
}

func TestSwiGLU(t *testing.T) {
	b := newBench(t)
	const rows, width = 5, 2700
	up, ld := padded(width, kernels.Tile), 2*padded(width, kernels.Tile)
	both := b.matrix(rows, ld, ld)
	args := kernels.SwiGLUArgs{
		Count: put(b, []int32{rows}), Both: put(b, both), Out: put(b, make([]uint16, (rows+1)*ld)),
		Ld: int64(ld), LdOut: int64(ld), Up: int32(up), Width: width,
	}
	b.run(func(p *driver.Program) { b.set.SwiGLU(p, rows+1, args) })
	for i, got := range get[uint16](b, args.Out, (rows+1)*ld) {
		if i%ld >= width || i/ld == rows {
			if got != 0 {
				t.Fatalf("wrote %v at %d of row %d", wide(got), i%ld, i/ld)
			}
			continue
		}
		gate := wide(both[i])
		want := gate / (1 + math.Exp(-gate)) * wide(both[i+up])
		// The roundings of exp and of what follows, and that to bf16.
		near(t, "swiglu", wide(got), want, math.Abs(want)*(0x1p-8+0x1p-18))
	}
}

// Heads: bias, norm, rotation; queries to q, keys and values into their pages; zeros behind
// a head that is padded.
func TestHeads(t *testing.T) {
	for _, kv := range []kernels.KV{kernels.KVBF16, kernels.KVFP8} {
		t.Run(string(kv), func(t *testing.T) { testHeads(t, kv) })
	}
}

func testHeads(t *testing.T, kv kernels.KV) {
	b := newBench(t)
	const (
		rows, heads, size, stride, blockTokens = 4, 6, 48, 64, 16
		all, half, positions, eps              = heads + 2*kvHeads, size / 2, 40, 1e-6
	)
	slice := kv.SliceBytes(kvHeads, blockTokens, stride)
	ld, ldQ := padded(all*size, kernels.Tile), padded(heads*stride, kernels.Tile)
	qkv, bias, qNorm, kNorm := b.floats(rows*ld), b.floats(all*size), b.floats(size), b.floats(size)
	cosine, sine := b.floats(positions*half), b.floats(positions*half)
	position, slots := []int32{7, 39, 0, 21}, []int32{35, 1, 16, 63}
	args := kernels.HeadsArgs{
		Counts: put(b, []kernels.Counts{{Rows: rows}}), QKV: put(b, qkv), Bias: put(b, bias), QNorm: put(b, qNorm), KNorm: put(b, kNorm),
		Cos: put(b, cosine), Sin: put(b, sine), Positions: put(b, position), Slots: put(b, slots),
		Q: put(b, make([]uint16, rows*ldQ)), Pages: put(b, make([]byte, 4*2*slice)),
		Ld: int64(ld), LdQ: int64(ldQ), PageBytes: int64(2 * slice), LayerBytes: int64(slice),
		Heads: heads, KVHeads: kvHeads, Size: size, BlockTokens: blockTokens, Eps: eps, Stride: stride, FP8: kv.FP8(),
	}
	b.run(func(p *driver.Program) { b.set.Heads(p, rows+1, args) })
	q, pages := get[uint16](b, args.Q, rows*ldQ), get[byte](b, args.Pages, 4*2*slice)
	for row := range rows {
		for head := range all {
			x, sum := make([]float64, size), 0.0
			for i := range x {
				x[i] = float64(qkv[row*ld+head*size+i]) + float64(bias[head*size+i])
				sum += x[i] * x[i]
			}
			norm := kNorm
			// What there is, and half a step of it beside what is relative.
			got, relative, step := make([]float64, stride), 0x1p-8, 0.0
			slot := int(slots[row])
			layer, line := pages[(slot/blockTokens*2+1)*slice:], (head-heads)*blockTokens+slot%blockTokens
			switch {
			case head < heads:
				norm = qNorm
				for i := range got {
					got[i] = wide(q[row*ldQ+head*stride+i])
				}
			case kv == kernels.KVFP8:
				scale, largest := math.Ldexp(1, int(layer[2*kvHeads*blockTokens*stride+line])-127), 0.0
				for i := range got {
					got[i] = fp8(layer[line*stride+place(i)]) * scale
					largest = max(largest, math.Abs(got[i]))
				}
				near(t, "the largest code", largest/scale, (448+224)/2, (448-224)/2)
				relative, step = 0x1p-4, scale*0x1p-10
			default:
				for i := range got {
					got[i] = wide(binary.LittleEndian.Uint16(layer[2*(line*stride+i):]))
				}
			}
			rotated := head < heads+kvHeads
			for i := range x {
				if rotated {
					x[i] *= float64(norm[i]) / math.Sqrt(sum/size+eps)
				}
			}
			for i := range stride {
				want, reach := 0.0, 0.0
				switch {
				case i >= size:
				case rotated:
					c, s := float64(cosine[int(position[row])*half+i%half]), float64(sine[int(position[row])*half+i%half])
					low, high := x[i%half], x[i%half+half]
					want, reach = low*c-high*s, math.Abs(low)+math.Abs(high)
					if i >= half {
						want = high*c + low*s
					}
				default:
					want, reach = x[i], math.Abs(x[i])
				}
				near(t, "heads", got[i], want, math.Abs(want)*relative+step+reach*size*0x1p-23)
			}
		}
	}
}
