package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// BlockID names a block of one pool: an index from 0.
type BlockID int32

// BlockRange is n neighbouring blocks from first on.
func BlockRange(first, n int) []BlockID {
	blocks := make([]BlockID, n)
	for i := range blocks {
		blocks[i] = BlockID(first + i)
	}
	return blocks
}

// Layout describes KV pages exactly enough that bytes of one engine mean the
// same to another. Two engines may exchange pages if and only if their layouts
// have equal digests.
type Layout struct {
	// ModelDigest is the digest of configuration and weights, hexadecimal.
	ModelDigest string
	// ArithmeticClass names weight type, KV type and arithmetic version, such as
	// "cpu/bf16/bf16/1". Tokens are reproducible within one class only.
	ArithmeticClass string
	// Layers, KVHeads and HeadSize are the model's.
	Layers, KVHeads, HeadSize int
	// ElementType is the type of one element, such as "bf16".
	ElementType string
	// BlockTokens is the number of tokens in a block.
	BlockTokens int
	// Order names the order of elements within one slice.
	Order string
	// SliceBytes is the size of one layer's slice of a block, keys and values.
	SliceBytes int
}

// BlocksFor is how many blocks of blockTokens hold so many tokens.
func BlocksFor(tokens, blockTokens int) int { return (tokens + blockTokens - 1) / blockTokens }

// PageBytes is the size of one block over all layers.
func (l Layout) PageBytes() int { return l.Layers * l.SliceBytes }

// Blocks is how many blocks there are: as many as asked for, or as fit into bytes if that is 0, but
// no more than limit.
func (l Layout) Blocks(asked int, bytes int64, limit int) (int, error) {
	page := int64(l.PageBytes())
	fit := min(bytes/page, int64(limit))
	switch {
	case asked < 0 || bytes < 0:
		return 0, errors.New("the number of blocks and the KV memory must not be negative")
	case asked == 0 && bytes == 0:
		return 0, errors.New("no KV memory: set the number of blocks or of bytes")
	case asked == 0 && fit == 0:
		return 0, fmt.Errorf("%d bytes of KV memory do not hold one block of %d bytes", bytes, page)
	case asked == 0:
		asked = int(fit)
	}
	if asked > limit || int64(asked) > math.MaxInt64/2/page {
		return 0, fmt.Errorf("%d blocks of %d bytes are too many", asked, page)
	}
	return asked, nil
}

// Proto is the layout as it goes over the network and into records.
func (l Layout) Proto() *kvtransferv1.Layout {
	return &kvtransferv1.Layout{
		ModelDigest: l.ModelDigest, ArithmeticClass: l.ArithmeticClass,
		Layers: uint32(l.Layers), KvHeads: uint32(l.KVHeads), HeadSize: uint32(l.HeadSize),
		ElementType: l.ElementType, BlockTokens: uint32(l.BlockTokens), Order: l.Order, SliceBytes: uint32(l.SliceBytes),
	}
}

// Digest is the first 8 bytes, little-endian, of the SHA-256 of the layout's
// canonical text. It is never 0.
func (l Layout) Digest() uint64 {
	text := fmt.Sprintf("model=%s\nclass=%s\nlayers=%d\nkv_heads=%d\nhead_size=%d\nelement=%s\nblock_tokens=%d\norder=%s\nslice_bytes=%d\n",
		l.ModelDigest, l.ArithmeticClass, l.Layers, l.KVHeads, l.HeadSize, l.ElementType, l.BlockTokens, l.Order, l.SliceBytes)
	sum := sha256.Sum256([]byte(text))
	return max(binary.LittleEndian.Uint64(sum[:8]), 1)
}
