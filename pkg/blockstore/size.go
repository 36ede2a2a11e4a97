package blockstore

import "github.com/tandem-serving/tandem/pkg/kvcache"

const (
	// tokenBytes is what a token takes, beside its KV.
	tokenBytes = 4
	// bookBytes is about what is known of a block beside its tokens, bytes.
	bookBytes = 256
	// maxBlocks keeps the list of all blocks within one message.
	maxBlocks = 1 << 22
)

// LeastBlockBytes is what the smallest block takes that any layout describes: one byte of one
// layer of one token.
const LeastBlockBytes = 1 + tokenBytes + bookBytes

// BlockBytes is what one block of a layout takes of a store's memory: its page, its tokens and
// what is known of it.
func BlockBytes(layout kvcache.Layout) int64 {
	return int64(layout.PageBytes()) + int64(tokenBytes*layout.BlockTokens) + bookBytes
}

// Blocks is how many blocks of a layout fit into so many bytes.
func Blocks(memoryBytes int64, layout kvcache.Layout) int {
	return int(min(memoryBytes/BlockBytes(layout), maxBlocks))
}
