package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// Each row of attention has the same bits whichever kernel computes it, whatever rows it
// shares an item with and whether its splits are one item or several; and is what float64
// says within the rounding of scores, weights and result. Keys and values in fp8 give the
// bits that the same numbers in bf16 give.
func TestAttention(t *testing.T) {
	for _, kv := range []kernels.KV{kernels.KVBF16, kernels.KVFP8} {
		t.Run(string(kv), func(t *testing.T) { testAttention(t, kv) })
	}
}

func testAttention(t *testing.T, kv kernels.KV) {
	b := newBench(t)
	for _, size := range []int{32, 64, 80, 128, 256} {
		for _, window := range []int{0, b.between(1, 300)} {
			context, rows, group := b.between(257, 600), b.between(5, 30), b.between(1, 5)
			if size == 32 && window == 0 {
				context, rows = 9*kernels.SplitTokens+20, 4 // more splits than are joined at a time
			}
			t.Run(fmt.Sprintf("size %d, window %d, context %d, rows %d, group %d", size, window, context, rows, group), func(t *testing.T) {
				a := newAttention(b, kv, size, group, window, context, rows)
				want := a.compute(thinApart(a, 1))
				a.compare(t, want)
				if kv == kernels.KVFP8 {
					if !slices.Equal(a.inBF16().compute(thinApart(a, 1)), want) {
						t.Error("the same numbers in bf16 give other bits")
					}
				}
				thin, tall := kernels.ThinRows/group, kernels.TallRows/group
				for name, p := range map[string]*plan{
					"thin":              thinWhole(a, thin),
					"thin, in splits":   thinApart(a, thin),
					"tall":              tallWhole(a, tall),
					"tall, few rows":    tallWhole(a, 3),
					"tall, in splits":   tallApart(a, tall),
					"tall, ones apart ": tallApart(a, 1),
				} {
					if !slices.Equal(a.compute(p), want) {
						t.Errorf("%s differs from rows one by one", name)
					}
				}
			})
		}
	}
}

const kvHeads, blockTokens = 2, 16

// attention is rows of queries at the end of a context.
type attention struct {
	*bench
	kv                                     kernels.KV
	kernels                                *kernels.Attention
	size, group, window, context, rows, ld int
	q, keys, values                        []uint16 // keys and values are [token][KV head][dimension], bf16
	args                                   kernels.AttentionArgs
}

func newAttention(b *bench, kv kernels.KV, size, group, window, context, rows int) *attention {
	a := &attention{bench: b, kv: kv, size: size, group: group, window: window, context: context, rows: rows}
	heads := kvHeads * group
	a.ld = padded(heads*size, kernels.Tile)
	a.q = b.matrix(rows, heads*size, a.ld)
	a.keys, a.values = b.matrix(context, kvHeads*size, kvHeads*size), b.matrix(context, kvHeads*size, kvHeads*size)
	var codes, scales [2][]byte // of fp8, which keys and values are then made of
	if kv == kernels.KVFP8 {
		for part, numbers := range [][]uint16{a.keys, a.values} {
			codes[part], scales[part] = b.codes(len(numbers)), make([]byte, context*kvHeads)
			for i := range scales[part] {
				scales[part][i] = byte(b.between(127-12, 127-6))
			}
			for i, code := range codes[part] {
				numbers[i] = narrow(float32(math.Ldexp(fp8(code), int(scales[part][i/size])-127)))
			}
		}
	}
	blocks := up(context, blockTokens)
	tables := make([]int32, blocks)
	for i, block := range b.random.Perm(blocks) {
		tables[i] = int32(block)
	}
	slice := kv.SliceBytes(kvHeads, blockTokens, size)
	pages := bytes.Repeat([]byte{0xff}, 2*blocks*slice) // two layers of NaN
	for token := range context {
		layer := pages[(int(tables[token/blockTokens])*2+1)*slice:][:slice]
		for head := range kvHeads {
			from := (token*kvHeads + head) * size
			for part, numbers := range [][]uint16{a.keys, a.values} {
				line := (part*kvHeads+head)*blockTokens + token%blockTokens
				if kv == kernels.KVBF16 {
					copy(layer[line*2*size:], bytesOf(numbers[from:from+size]))
					continue
				}
				for i := range size {
					layer[line*size+place(i)] = codes[part][from+i]
				}
				layer[2*kvHeads*blockTokens*size+line] = scales[part][from/size]
			}
		}
	}
	a.kernels = b.attention(kv, size)
	a.args = kernels.AttentionArgs{
		Tables: put(b, tables), Q: put(b, a.q), Pages: put(b, pages), LdQ: int64(a.ld), PageBytes: int64(2 * slice), LayerBytes: int64(slice),
		Heads: int32(heads), KVHeads: kvHeads, Size: int32(size), BlockTokens: blockTokens, Window: int32(window), Scale: kernels.Scale(size),
	}
	return a
}

// inBF16 is the same rows with the same numbers in bf16.
func (a *attention) inBF16() *attention {
	same := *a
	same.kernels = a.bench.attention(kernels.KVBF16, a.size)
	slice := kernels.KVBF16.SliceBytes(kvHeads, blockTokens, a.size)
	blocks := up(a.context, blockTokens)
	pages, tables := make([]uint16, blocks*slice/2), make([]int32, blocks)
	for i := range tables {
		tables[i] = int32(i)
	}
	for token := range a.context {
		for head := range kvHeads {
			for part, numbers := range [][]uint16{a.keys, a.values} {
				at := token/blockTokens*slice/2 + ((part*kvHeads+head)*blockTokens+token%blockTokens)*a.size
				copy(pages[at:at+a.size], numbers[(token*kvHeads+head)*a.size:])
			}
		}
	}
	same.args.Tables, same.args.Pages = put(a.bench, tables), put(a.bench, pages)
	same.args.PageBytes, same.args.LayerBytes = int64(slice), 0
	return &same
}

func up(n, by int) int { return (n + by - 1) / by }

// plan is one way to compute all rows.
type plan struct {
	tall  bool
	items []kernels.Item
	joins []kernels.Join
	slots int
}

// item is n rows from row on, with all their splits.
func (a *attention) item(row, n int) kernels.Item {
	position := a.context - a.rows + row
	first := 0
	if a.window > 0 {
		first = max(0, position+1-a.window)
	}
	return kernels.Item{
		Row0: int32(row), Tokens: int32(n), Position: int32(position),
		First: int32(first / kernels.SplitTokens), Last: int32((position+n-1)/kernels.SplitTokens + 1), Slot: -1,
	}
}

// each calls f with the rows, n at a time.
func (a *attention) each(n int, f func(kernels.Item)) {
	for row := 0; row < a.rows; row += n {
		f(a.item(row, min(n, a.rows-row)))
	}
}

func thinWhole(a *attention, n int) *plan { return whole(a, n, false) }
func tallWhole(a *attention, n int) *plan { return whole(a, n, true) }
func thinApart(a *attention, n int) *plan { return apart(a, n, false) }
func tallApart(a *attention, n int) *plan { return apart(a, n, true) }

func whole(a *attention, n int, tall bool) *plan {
	p := &plan{tall: tall}
	a.each(n, func(i kernels.Item) { p.items = append(p.items, i) })
	return p
}

func apart(a *attention, n int, tall bool) *plan {
	p, slots := &plan{tall: tall}, 1
	if tall {
		slots = kernels.TallRows / kernels.ThinRows
	}
	a.each(n, func(i kernels.Item) {
		p.joins = append(p.joins, kernels.Join{
			Row0: i.Row0, Tokens: i.Tokens, Slot: int32(p.slots), Stride: int32(slots), Splits: i.Last - i.First,
		})
		for split := i.First; split < i.Last; split++ {
			one := i
			one.First, one.Last, one.Slot = split, split+1, int32(p.slots)
			p.items = append(p.items, one)
			p.slots += slots
		}
	})
	return p
}

// compute returns the bits of rows.
func (a *attention) compute(p *plan) []uint16 {
	args := a.args
	args.Count, args.Items = put(a.bench, []int32{int32(len(p.items))}), put(a.bench, p.items)
	args.Out = put(a.bench, make([]uint16, a.rows*a.ld))
	lines := max(p.slots, 1) * kvHeads * kernels.ThinRows
	args.Results, args.Sums = put(a.bench, a.floats(lines*a.size)), put(a.bench, a.floats(lines*2))
	join := kernels.JoinArgs{
		Count: put(a.bench, []int32{int32(len(p.joins))}), Joins: put(a.bench, append(p.joins, kernels.Join{})), Results: args.Results,
		Sums: args.Sums, Out: args.Out, LdQ: args.LdQ, Heads: args.Heads, KVHeads: args.KVHeads, Size: args.Size,
	}
	const blocks = 3
	a.run(func(program *driver.Program) {
		if p.tall {
			a.kernels.Tall(program, blocks, args)
		} else {
			a.kernels.Thin(program, blocks, args)
		}
		a.set.Join(program, blocks, join)
	})
	return get[uint16](a.bench, args.Out, a.rows*a.ld)
}

// compare holds rows against float64. A score errs by a rounding a dimension of the sum of
// magnitudes; weights are rounded to 8 bits, and the result is.
func (a *attention) compare(t *testing.T, out []uint16) {
	t.Helper()
	for row := range a.rows {
		position := a.context - a.rows + row
		begin := 0
		if a.window > 0 {
			begin = max(0, position+1-a.window)
		}
		for head := range kvHeads * a.group {
			q, kv := a.q[row*a.ld+head*a.size:][:a.size], head/a.group
			var scores []float64
			reach := 0.0
			for token := begin; token <= position; token++ {
				score, size := dot(q, a.keys[(token*kvHeads+kv)*a.size:])
				scores = append(scores, score/math.Sqrt(float64(a.size)))
				reach = max(reach, size/math.Sqrt(float64(a.size)))
			}
			largest, sum := slices.Max(scores), 0.0
			for i := range scores {
				scores[i] = math.Exp(scores[i] - largest)
				sum += scores[i]
			}
			slack := 2*float64(a.size)*0x1p-23*reach + 0x1p-8 + float64(len(scores))*0x1p-23
			for dimension := range a.size {
				want, size := 0.0, 0.0
				for i, p := range scores {
					v := wide(a.values[((begin+i)*kvHeads+kv)*a.size+dimension])
					want += p / sum * v
					size += p / sum * math.Abs(v)
				}
				near(t, "attention", wide(out[row*a.ld+head*a.size+dimension]), want, slack*size+math.Abs(want)*0x1p-8)
			}
		}
	}
}
