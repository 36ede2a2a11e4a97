package kernels

/*
#include "tdm_kernels.h"
*/
import "C"

// partsPerThread is how finely a batch's attention is divided: no part of it is much
// more than this fraction of what a thread has to do, so that threads end together.
const partsPerThread = 8

// The attention of a batch is a list of items: some tokens of a sequence, with the
// query heads of one KV head. An item that alone is much of the batch is divided into
// parts, each with some of the splits of its context. Which changes no bit: a split's
// result does not depend on who computes it, and an item's are joined in their order.
// Parts take splits in turn, not runs of them: what a layer's window leaves of the
// context is shared as well.

// resultFloats is the memory for results of splits: the longest context of one token.
// One thread has nobody to share with.
func resultFloats(threads int, shape Shape, bounds BatchBounds) int {
	splits := (bounds.BlocksPerSequence*shape.BlockTokens + SplitTokens - 1) / SplitTokens
	if threads == 1 || splits == 1 {
		return 0
	}
	return shape.KVHeads * splits * resultSize(shape, 1)
}

// resultSize is the floats of one split's result for so many tokens of an item.
func resultSize(shape Shape, tokens int) int {
	return int(C.tdm_attention_result(C.int(tokens*shape.Heads/shape.KVHeads), C.int(shape.HeadSize)))
}

// wholeItems is the most items of a batch, divided or not.
func (k *Workspace) wholeItems() int {
	return k.shape.KVHeads * (k.bounds.Rows/k.itemTokens + k.bounds.Sequences)
}

// mostDivided is the most items that are divided: each is more than its share.
func (k *Workspace) mostDivided() int { return min(k.wholeItems(), partsPerThread*k.threads) }

// mostItems is the most items and parts of a batch.
func (k *Workspace) mostItems() int { return k.wholeItems() + partsPerThread*k.threads }

// plan divides the attention of the batch into items, and items into parts where
// threads would wait for one another, as long as their results fit.
func (k *Workspace) plan() {
	var total int64
	for _, q := range k.sequences[:k.sequenceN] {
		total += int64(k.shape.KVHeads) * seen(int(q.start), int(q.count))
	}
	n, divided, results := 0, 0, 0
	for i, q := range k.sequences[:k.sequenceN] {
		// The last tokens see the most: those items first.
		for first := (int(q.count) - 1) / k.itemTokens * k.itemTokens; first >= 0 && q.count > 0; first -= k.itemTokens {
			item := C.tdm_item{sequence: C.int(i), first: C.int(first), count: C.int(min(k.itemTokens, int(q.count)-first)), parts: 1}
			start := int(q.start) + first
			splits := (start + int(item.count) + SplitTokens - 1) / SplitTokens
			parts := k.parts(seen(start, int(item.count)), total, splits)
			size := 0
			if parts > 1 {
				size = splits * resultSize(k.shape, int(item.count))
			}
			for h := range k.shape.KVHeads {
				item.kv_head = C.int(h)
				if parts == 1 || results+size > k.results {
					k.items[n] = item
					n++
					continue
				}
				k.unfinished[divided] = int32(parts)
				part := item
				part.parts, part.whole, part.results = C.int(parts), C.int(divided), C.size_t(results)
				for p := range parts {
					part.part = C.int(p)
					k.items[n] = part
					n++
				}
				divided++
				results += size
			}
		}
	}
	k.step.rows, k.step.items = C.int(k.rows), C.int(n)
}

// seen is how many tokens `count` queries from start on see, all together, windows
// left aside.
func seen(start, count int) int64 {
	return int64(count) * (2*int64(start) + int64(count) + 1) / 2
}

// parts is how many parts an item becomes that is cost of the batch's total and sees so
// many splits.
func (k *Workspace) parts(cost, total int64, splits int) int {
	if k.threads == 1 {
		return 1
	}
	return min(splits, int((cost*partsPerThread*int64(k.threads)+total-1)/total))
}
