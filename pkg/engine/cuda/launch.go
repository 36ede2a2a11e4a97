package cuda

import (
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// launcher appends the kernels of a step to a program. rows is the most rows that the
// step may have: grids are of that size, and what the batch really has is in its counts.
type launcher struct {
	weights *Weights
	*workspace
	config  Config
	program *driver.Program
	pages   driver.Address
	fast    *fast   // nil: all products are the kernels' own
	scale   float32 // of scores
	rows    int
	single  bool // every sequence computes one token

	attend                 *kernels.Attention
	thinBlocks, tallBlocks int // thread blocks of attention for one KV head
}

// residual is where the rows of a step are: all of them, or after narrowing those that the
// last layer goes on with.
type residual struct {
	counts   driver.Address
	x, mixed driver.Address
	rows     int
	items    sections
}

// countOf is the address of one field of a counts in device memory.
func countOf(counts driver.Address, field uintptr) driver.Address {
	return counts + driver.Address(field)
}

var zero kernels.Counts

func (s residual) rowCount() driver.Address { return countOf(s.counts, unsafe.Offsetof(zero.Rows)) }

// whole is the residual of all rows.
func (l *launcher) whole() residual {
	return residual{l.in.counts.device, l.x, l.mixed, l.rows, l.in.attention[0]}
}

// narrowed is the residual of the rows of which logits are wanted.
func (l *launcher) narrowed(wanted int) residual {
	counts := l.in.counts.device + driver.Address(unsafe.Sizeof(zero))
	return residual{counts, l.narrowX, l.narrowMixed, wanted, l.in.attention[1]}
}

// deferred is the norm with a weight of a residual's rows, whose products finish it; with a
// weight of 0 there is no norm.
func (l *launcher) deferred(weight driver.Address) kernels.Deferred {
	if weight == 0 {
		return kernels.Deferred{}
	}
	s := l.weights.shape
	return kernels.Deferred{
		Weight: weight, Scaled: l.normed, Squares: l.squares, Roots: l.roots, LdScaled: int64(s.ldHidden), LdSquares: int64(s.ldSquares),
		Width: int32(s.hidden), Eps: l.weights.spec.RMSNormEps,
	}
}

// embed fills the residual stream.
func (l *launcher) embed() {
	l.weights.kernels.Embed(l.program, l.rows, kernels.EmbedArgs{
		Counts: l.in.counts.device, Tokens: l.in.tokens.device, Table: l.weights.at.embedding.rows, X: l.x,
		LdTable: int64(l.weights.shape.ldHidden), LdX: int64(l.weights.shape.ldHidden), Width: int32(l.weights.shape.hidden),
		Norm: l.deferred(l.weights.at.layers[0].attentionNorm),
	})
}

// keys computes the queries, keys and values of a layer: after it the layer's part of
// the pages is complete.
func (l *launcher) keys(layer int) {
	s, w, all := l.weights.shape, &l.weights.at.layers[layer], l.whole()
	product := l.normal(all, w.attentionNorm)
	product.W, product.Scales, product.Out, product.LdOut, product.Outputs = w.qkv.rows, w.qkv.scales, l.qkv, int64(s.ldQKV), int32(s.qkv)
	layout := l.config.layout(l.weights.spec, l.weights.kind)
	heads := kernels.HeadsArgs{
		Counts: all.counts, QKV: l.qkv, Bias: w.bias, QNorm: w.qNorm, KNorm: w.kNorm, Cos: l.weights.at.cos, Sin: l.weights.at.sin,
		Positions: l.in.positions.device, Slots: l.in.slots.device, Q: l.q, Pages: l.pages,
		Ld: int64(s.ldQKV), LdQ: int64(s.ldQ), PageBytes: int64(layout.PageBytes()), LayerBytes: int64(layer * layout.SliceBytes),
		Heads: int32(s.heads), KVHeads: int32(s.kvHeads), Size: int32(s.headSize), BlockTokens: int32(l.config.BlockTokens), Eps: l.weights.spec.RMSNormEps, Stride: int32(s.stride),
		FP8: l.config.KV.kernels().FP8(),
	}
	if l.fusesHeads() {
		product.Outputs /= 2 // of two dimensions each
		l.weights.kernels.ProductHeads(l.program, l.typeOf(product), l.rows, kernels.ProductHeadsArgs{Product: product, Heads: heads})
		return
	}
	l.product(kernels.Store, product, l.rows)
	l.weights.kernels.Heads(l.program, l.rows, heads)
}

// fusesHeads says whether one kernel computes queries, keys and values and puts them where
// they belong.
func (l *launcher) fusesHeads() bool {
	spec := l.weights.spec
	return !spec.QKNorm && l.config.KV == KVBF16 && kernels.FusesHeads(spec.HeadSize, l.rows)
}

// rest computes the rest of a layer for the rows of a residual. row says where the
// residual's rows are among all.
func (l *launcher) rest(layer int, to residual) {
	s, w := l.weights.shape, &l.weights.at.layers[layer]
	l.attention(layer, to)
	if to.x != l.x { // only now, since attention writes rows where they are among all
		l.gather(to, l.x, to.x, 4*s.ldHidden)
		l.gather(to, l.mixed, to.mixed, 2*s.ldQ)
	}
	l.product(kernels.Add, kernels.ProductArgs{
		Count: to.rowCount(), A: to.mixed, W: w.o.rows, Scales: w.o.scales, Out: to.x,
		LdA: int64(s.ldQ), LdW: int64(s.ldQ), LdOut: int64(s.ldHidden), K: int32(s.ldQ), Outputs: int32(s.hidden),
		Norm: l.deferred(w.ffnNorm),
	}, to.rows)
	ffn := l.normal(to, w.ffnNorm)
	ffn.W, ffn.Up, ffn.Scales, ffn.UpScales = w.gate.rows, w.up.rows, w.gate.scales, w.up.scales
	ffn.Out, ffn.LdOut, ffn.Outputs = l.inner, int64(s.ldFFN), int32(s.ffn)
	l.product(kernels.SwiGLU, ffn, to.rows)
	next := driver.Address(0) // of the last layer the head normalizes the rows that it takes
	if layer+1 < l.weights.spec.Layers {
		next = l.weights.at.layers[layer+1].attentionNorm
	}
	l.product(kernels.Add, kernels.ProductArgs{
		Count: to.rowCount(), A: l.inner, W: w.down.rows, Scales: w.down.scales, Out: to.x,
		LdA: int64(s.ldFFN), LdW: int64(s.ldFFN), LdOut: int64(s.ldHidden), K: int32(s.ldFFN), Outputs: int32(s.hidden),
		Norm: l.deferred(next),
	}, to.rows)
}

// normal are the arguments of a product of the norm of a residual's rows. The rows are
// there already, all but their roots, which the product multiplies by; only cuBLASLt needs
// them finished.
func (l *launcher) normal(from residual, weight driver.Address) kernels.ProductArgs {
	s := l.weights.shape
	args := kernels.ProductArgs{Count: from.rowCount(), A: l.normed, LdA: int64(s.ldHidden), LdW: int64(s.ldHidden), K: int32(s.ldHidden)}
	if l.isFast(from.rows) {
		l.norm(from.rowCount(), 0, from.x, weight, from.rows)
	} else {
		args.Norm = l.deferred(weight)
	}
	return args
}

// attention of the rows of a residual, whose results go where the rows are among all.
func (l *launcher) attention(layer int, to residual) {
	s, layout := l.weights.shape, l.config.layout(l.weights.spec, l.weights.kind)
	args := kernels.AttentionArgs{
		Tables: l.in.tables.device, Q: l.q, Pages: l.pages, Out: l.mixed, Results: l.results, Sums: l.sums,
		LdQ: int64(s.ldQ), PageBytes: int64(layout.PageBytes()), LayerBytes: int64(layer * layout.SliceBytes),
		Heads: int32(s.heads), KVHeads: int32(s.kvHeads), Size: int32(s.stride), BlockTokens: int32(l.config.BlockTokens),
		Window: int32(l.weights.spec.Window(layer)), Scale: l.scale,
	}
	args.Count, args.Items = countOf(to.counts, unsafe.Offsetof(zero.Thin)), to.items.thin.device
	l.attend.Thin(l.program, l.thinBlocks, args)
	if !l.single { // whose items are all thin
		args.Count, args.Items = countOf(to.counts, unsafe.Offsetof(zero.Tall)), to.items.tall.device
		l.attend.Tall(l.program, l.tallBlocks, args)
	}
	// Every block holds registers while it waits for attention, which the next product's
	// blocks could have: there are no more than may have work.
	blocks := l.thinBlocks
	if l.single {
		blocks = min(blocks, kernels.JoinBlocks*to.rows)
	}
	l.weights.kernels.Join(l.program, blocks, kernels.JoinArgs{
		Count: countOf(to.counts, unsafe.Offsetof(zero.Joins)), Joins: to.items.joins.device, Results: l.results, Sums: l.sums, Out: l.mixed,
		LdQ: int64(s.ldQ), Heads: int32(s.heads), KVHeads: int32(s.kvHeads), Size: int32(s.stride),
	})
}

// gather copies the rows of which logits are wanted side by side.
func (l *launcher) gather(to residual, from, into driver.Address, rowBytes int) {
	l.weights.kernels.Gather(l.program, to.rows, kernels.GatherArgs{
		Count: to.rowCount(), Index: l.in.index.device, From: from, To: into, RowBytes: int64(rowBytes),
	})
}

// norm normalizes rows of x, those that index names or all, into l.normed: whole, with
// nothing left to products.
func (l *launcher) norm(count, index, x, weight driver.Address, rows int) {
	s := l.weights.shape
	l.weights.kernels.Norm(l.program, rows, kernels.NormArgs{
		Count: count, Index: index, X: x, Weight: weight, Out: l.normed,
		LdX: int64(s.ldHidden), LdOut: int64(s.ldHidden), Width: int32(s.hidden), Eps: l.weights.spec.RMSNormEps,
	})
}

// isFast says whether cuBLASLt computes products of so many rows.
func (l *launcher) isFast(rows int) bool { return l.fast != nil && rows > fastRows }

// product appends a product.
func (l *launcher) product(epilogue kernels.Epilogue, args kernels.ProductArgs, rows int) {
	if l.isFast(rows) {
		l.fast.product(l, epilogue, args, rows)
		return
	}
	args.Parts, args.Arranged = l.parts, l.arranged
	l.weights.kernels.Product(l.program, l.typeOf(args), epilogue, rows, args)
}

// typeOf is the type of a product's weights: those that have scales are of the layers'
// type, others bf16.
func (l *launcher) typeOf(args kernels.ProductArgs) kernels.Weights {
	if args.Scales != 0 {
		return l.weights.kind.layers()
	}
	return kernels.BF16
}

// head computes the logits of a pass of at most rows wanted rows, the first of which is
// `first` of the index, and draws tokens from them.
func (l *launcher) head(from residual, pass, first, rows int) {
	s := l.weights.shape
	count := l.in.passes.device + driver.Address(4*pass)
	x, index := from.x, l.in.index.device+driver.Address(4*first)
	if x != l.x { // its rows are the wanted ones already
		x, index = x+driver.Address(4*first*s.ldHidden), 0
	}
	l.norm(count, index, x, l.weights.at.finalNorm, rows)
	l.product(kernels.Store, kernels.ProductArgs{
		Count: count, A: l.normed, W: l.weights.at.output.rows, Scales: l.weights.at.output.scales, Out: l.logits,
		LdA: int64(s.ldHidden), LdW: int64(s.ldHidden), LdOut: int64(s.ldLogits), K: int32(s.ldHidden), Outputs: int32(s.vocab),
	}, rows)
	l.weights.kernels.Draw(l.program, rows, kernels.DrawArgs{
		Count: count, Wishes: l.in.wishes.device + driver.Address(l.in.wishes.used(first)), Logits: l.logits, Tokens: l.drawn,
		Ld: int64(s.ldLogits), Vocabulary: int32(s.vocab),
	})
}
