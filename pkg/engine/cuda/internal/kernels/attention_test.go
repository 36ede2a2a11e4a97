package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// TestAttention compares attention over pages of random shapes with sums in float64: by
// the kernel for few rows and the one for many, in one item and divided among items that
// are joined. All of them give the same bits.
func TestAttention(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(7, 8))
	for range r.times(6) {
		a := newAttention(r, random)
		want := a.reference()
		var first []uint16
		for _, tall := range []bool{false, true} {
			for _, divided := range []bool{false, true} {
				got := a.run(tall, divided)
				if first == nil {
					first = got
					a.compare(got, want)
				}
				for i := range got {
					if got[i] != first[i] {
						t.Fatalf("%+v: tall %v, divided %v: element %d is %v, want %v", a.args, tall, divided, i, wide(got[i]), wide(first[i]))
					}
				}
			}
		}
	}
}

// attention is some tokens of one sequence behind a context.
type attention struct {
	r                *rig
	args             kernels.AttentionArgs
	tokens, position int
	q, kv            []uint16 // kv is the pages
	table            []int32
}

func newAttention(r *rig, random *rand.Rand) *attention {
	a := &attention{r: r}
	size := 16 * (1 + random.IntN(16))
	kvHeads := 1 + random.IntN(3)
	group := 1 + random.IntN(8)
	blockTokens := 16 << random.IntN(5)
	a.tokens = 1 + random.IntN(kernels.ThinRows/group)
	a.position = random.IntN(900)
	context := a.position + a.tokens
	blocks := (context + blockTokens - 1) / blockTokens
	heads := kvHeads * group
	ldq := padded(heads*size, kernels.KBlock)
	a.q = bf16s(random, a.tokens*ldq, 1)
	slice := 2 * kvHeads * blockTokens * size
	a.kv = bf16s(random, (blocks+2)*slice, 1)
	for _, b := range random.Perm(blocks + 2)[:blocks] {
		a.table = append(a.table, int32(b))
	}
	for position := context; position < blocks*blockTokens; position++ { // what others left
		for part := range 2 * kvHeads {
			at := a.at(position, part, blockTokens, slice, size)
			for d := range size {
				a.kv[at+d] = 0xffff
			}
		}
	}
	window := 0
	if random.IntN(2) == 0 {
		window = 1 + random.IntN(600)
	}
	a.args = kernels.AttentionArgs{
		Tables: up(r, a.table), Q: up(r, a.q), Pages: up(r, a.kv), Out: up(r, make([]uint16, a.tokens*ldq)),
		LdQ: int64(ldq), PageBytes: int64(2 * slice), Heads: int32(heads), KVHeads: int32(kvHeads), Size: int32(size),
		BlockTokens: int32(blockTokens), Window: int32(window), Scale: kernels.Scale(size),
	}
	return a
}

// at is where the vector of a position begins in the pages: part counts the keys of all
// KV heads, then the values.
func (a *attention) at(position, part, blockTokens, slice, size int) int {
	return int(a.table[position/blockTokens])*slice + (part*blockTokens+position%blockTokens)*size
}

func (a *attention) run(tall, divided bool) []uint16 {
	r, args := a.r, a.args
	first := 0
	if args.Window > 0 {
		first = max(0, a.position-int(args.Window)+1) / kernels.SplitTokens
	}
	last := (a.position+a.tokens-1)/kernels.SplitTokens + 1
	item := kernels.Item{Tokens: int32(a.tokens), Position: int32(a.position), First: int32(first), Last: int32(last), Slot: -1}
	items, stride := []kernels.Item{item}, 1
	if tall {
		stride = kernels.TallRows / kernels.ThinRows
	}
	if divided {
		items = nil
		for split := first; split < last; split++ {
			item.First, item.Last, item.Slot = int32(split), int32(split+1), int32((split-first)*stride)
			items = append(items, item)
		}
	}
	slots := (last - first) * stride * int(args.KVHeads) * kernels.ThinRows
	args.Count, args.Items = up(r, []int32{int32(len(items))}), up(r, items)
	args.Results, args.Sums = up(r, make([]float32, slots*int(args.Size))), up(r, make([]float32, 2*slots))
	args.Out = up(r, make([]uint16, len(a.q)))
	if tall {
		r.set.AttentionTall(r.program, 3, args)
	} else {
		r.set.AttentionThin(r.program, 3, args)
	}
	if divided {
		join := kernels.Join{Tokens: int32(a.tokens), Stride: int32(stride), Splits: int32(last - first)}
		r.set.Join(r.program, 3, kernels.JoinArgs{
			Count: up(r, []int32{1}), Joins: up(r, []kernels.Join{join}), Results: args.Results, Sums: args.Sums, Out: args.Out,
			LdQ: args.LdQ, Heads: args.Heads, KVHeads: args.KVHeads, Size: args.Size,
		})
	}
	r.run()
	return down[uint16](r, args.Out, len(a.q))
}

// reference is softmax attention in float64.
func (a *attention) reference() []float64 {
	heads, kvHeads, size := int(a.args.Heads), int(a.args.KVHeads), int(a.args.Size)
	blockTokens, ld := int(a.args.BlockTokens), int(a.args.LdQ)
	slice := 2 * kvHeads * blockTokens * size
	out := make([]float64, len(a.q))
	for token := range a.tokens {
		position := a.position + token
		begin := 0
		if a.args.Window > 0 {
			begin = max(0, position-int(a.args.Window)+1)
		}
		for h := range heads {
			kv := h / (heads / kvHeads)
			q := a.q[token*ld+h*size:]
			scores := make([]float64, position+1-begin)
			largest := math.Inf(-1)
			for i := range scores {
				sum, _ := dot(q, a.kv[a.at(begin+i, kv, blockTokens, slice, size):], size)
				scores[i] = sum * float64(a.args.Scale)
				largest = max(largest, scores[i])
			}
			total := 0.0
			for i := range scores {
				scores[i] = math.Exp(scores[i] - largest)
				total += scores[i]
			}
			for i, p := range scores {
				v := a.kv[a.at(begin+i, kvHeads+kv, blockTokens, slice, size):]
				for d := range size {
					out[token*ld+h*size+d] += p / total * wide(v[d])
				}
			}
		}
	}
	return out
}

// compare allows for weights that are rounded to bf16, with values of about 1.
func (a *attention) compare(got []uint16, want []float64) {
	for i := range want {
		if slack := 0x1p-6 + math.Abs(want[i])*0x1p-7; !(math.Abs(wide(got[i])-want[i]) <= slack) {
			a.r.t.Fatalf("%+v, %d tokens at %d: element %d is %v, want %v", a.args, a.tokens, a.position, i, wide(got[i]), want[i])
		}
	}
}
