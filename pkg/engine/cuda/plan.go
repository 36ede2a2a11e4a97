package cuda

import (
	"cmp"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// work is the attention of a step: items for the two kernels, and what is to be joined
// afterwards. Its slices are parts of pinned memory: their capacities bound it.
type work struct {
	thin, tall []kernels.Item
	joins      []kernels.Join
	slots      int // of results that are in use
}

func (w *work) reset() { w.thin, w.tall, w.joins, w.slots = w.thin[:0], w.tall[:0], w.joins[:0], 0 }

// planner divides attention into items. Rows are tokens times the heads that share a KV
// head.
type planner struct {
	group  int // heads that share a KV head
	window int // of the layer with the widest one; 0: some layer sees all
	slots  int // results that fit
	// Thread blocks that keep the device busy, for one KV head.
	thinBlocks, tallBlocks int
}

// tokensOf is how many tokens an item has whose rows are at most so many.
func (p planner) tokensOf(rows int) int { return rows / p.group }

// rows is a run of tokens of one sequence, for one item or for its splits.
type rows struct {
	row0, tokens, position, table int
}

// first and last are the splits that the rows see some of.
func (p planner) first(r rows) int {
	if p.window == 0 || r.position < p.window {
		return 0
	}
	return (r.position - p.window + 1) / kernels.SplitTokens
}

func (p planner) last(r rows) int {
	return (r.position+r.tokens-1)/kernels.SplitTokens + 1
}

// size is how many tokens the items of a run of tokens have, and whether they are tall.
func (p planner) size(tokens int) (each int, tall bool) {
	if tokens <= p.tokensOf(kernels.ThinRows) {
		return tokens, false
	}
	return p.tokensOf(kernels.TallRows), true
}

// plan makes the items of runs of tokens. A context that is more than a thread block's
// share of all is divided among blocks: a result does not depend on it, since splits are
// at fixed positions and are joined in order. The two kernels run one after the other, so
// each has shares of its own.
func (p planner) plan(w *work, runs []rows) {
	w.reset()
	thin, tall := 0, 0  // splits
	parts, most := 0, 0 // thin ones, and the most splits of one
	p.each(runs, func(r rows, isTall bool) {
		n := p.last(r) - p.first(r)
		if isTall {
			tall += n
			return
		}
		thin += n
		parts, most = parts+1, max(most, n)
	})
	thinShare, tallShare := (thin+p.thinBlocks-1)/p.thinBlocks, (tall+p.tallBlocks-1)/p.tallBlocks
	whole := p.whole(parts, most, thinShare)
	p.each(runs, func(r rows, isTall bool) {
		switch {
		case isTall:
			p.add(w, r, true, tallShare)
		case whole > 0:
			p.add(w, r, false, thinShare)
			whole--
		default:
			p.add(w, r, false, min(thinShare, 1))
		}
	})
	deal(w.tall, p.tallBlocks)
}

// deal orders items so that thread blocks have about as much to do: block b takes items b,
// b + blocks, and so on. The longest come first, and every second round is backwards.
func deal(items []kernels.Item, blocks int) {
	slices.SortStableFunc(items, func(x, y kernels.Item) int { return cmp.Compare(length(y), length(x)) })
	for at := blocks; at < len(items); at += 2 * blocks {
		round := items[at:min(at+blocks, len(items))]
		slices.Reverse(round)
	}
}

// length is how many tokens of context an item has.
func length(item kernels.Item) int32 {
	return min(item.Last*kernels.SplitTokens, item.Position+item.Tokens) - item.First*kernels.SplitTokens
}

// whole is how many of the thin parts, from the first on, are divided only if they are more
// than their share. If none is, blocks take as many each, and some one more: while those
// compute the last ones, others have nothing to do. If it is quicker, the last ones are
// divided among all; to join them is counted as a split.
func (p planner) whole(parts, most, share int) int {
	last := parts % p.thinBlocks
	if most > share || parts < p.thinBlocks || (last*most+p.thinBlocks-1)/p.thinBlocks+1 >= most {
		return parts
	}
	return parts - last
}

// each visits runs in parts that fit an item.
func (p planner) each(runs []rows, visit func(part rows, tall bool)) {
	for _, r := range runs {
		each, tall := p.size(r.tokens)
		for at := 0; at < r.tokens; at += each {
			visit(rows{r.row0 + at, min(each, r.tokens-at), r.position + at, r.table}, tall)
		}
	}
}

// add makes the items of rows that fit one: one of all their splits, or one for each if
// they are more than share and the results fit.
func (p planner) add(w *work, r rows, tall bool, share int) {
	first, last := p.first(r), p.last(r)
	item := kernels.Item{
		Row0: int32(r.row0), Tokens: int32(r.tokens), Position: int32(r.position), Table: int32(r.table),
		First: int32(first), Last: int32(last), Slot: -1,
	}
	list, stride := &w.thin, 1
	if tall {
		list, stride = &w.tall, kernels.TallRows/kernels.ThinRows
	}
	splits := last - first
	if splits <= share || w.slots+splits*stride > p.slots {
		*list = append(*list, item)
		return
	}
	w.joins = append(w.joins, kernels.Join{
		Row0: item.Row0, Tokens: item.Tokens, Slot: int32(w.slots), Stride: int32(stride), Splits: int32(splits),
	})
	for split := first; split < last; split++ {
		item.First, item.Last, item.Slot = int32(split), int32(split+1), int32(w.slots)
		*list = append(*list, item)
		w.slots += stride
	}
}

// runsOf are a batch's sequences as runs of tokens; keep says how many tokens of a
// sequence, from its last on, are computed. The first one's block table begins at table.
func runsOf(runs []rows, batch engine.Batch, keep func(s *engine.Sequence) int, blockTokens, table int) []rows {
	runs = runs[:0]
	row := 0
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		n := len(s.Tokens)
		if kept := keep(s); kept > 0 {
			runs = append(runs, rows{row + n - kept, kept, s.Start + n - kept, table})
		}
		row += n
		table += s.UsedBlocks(blockTokens)
	}
	return runs
}

// slotOf is where the KV of a position is: block times tokens of a block, and place.
func slotOf(blocks []kvcache.BlockID, position, blockTokens int) int32 {
	return int32(blocks[position/blockTokens])*int32(blockTokens) + int32(position%blockTokens)
}
