package int8kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

const (
	elementType  = "bf16"
	elementBytes = 2
	scaleBytes   = 4
	levels       = 127
	// lanes is the number of elements in a 64-bit word.
	lanes = 8 / elementBytes
)

// coding implements wire.Coding.
type coding struct {
	heads    int // keys and values together
	elements int // per head; a multiple of lanes
}

// orders are the element orders of engine/cpu and engine/cuda. All that matters here is
// that each head's keys are contiguous, and its values.
func orders() []string { return []string{"k-d2t2/v-t2d2/1", spacedOrder} }

// spacedOrder is the order of engine/cuda, whose heads may be zero-padded.
const spacedOrder = "k-td/v-td/1"

// New returns the coding for a layout, which must be bf16 in one of orders.
func New(layout kvcache.Layout) (wire.Coding, error) {
	c := coding{heads: 2 * layout.KVHeads, elements: layout.HeadSize * layout.BlockTokens}
	if layout.Order == spacedOrder && c.heads > 0 && layout.SliceBytes%(c.heads*elementBytes) == 0 {
		c.elements = max(c.elements, layout.SliceBytes/(c.heads*elementBytes))
	}
	switch {
	case layout.ElementType != elementType:
		return nil, fmt.Errorf("KV elements are %q, but only %q can be encoded; send them unencoded", layout.ElementType, elementType)
	case !slices.Contains(orders(), layout.Order):
		return nil, fmt.Errorf("the order of elements is %q, but only %q are known; send them unencoded", layout.Order, orders())
	case layout.KVHeads <= 0 || layout.HeadSize <= 0 || layout.BlockTokens <= 0 || c.elements%lanes != 0,
		layout.SliceBytes != c.heads*c.elements*elementBytes:
		return nil, fmt.Errorf("%d KV heads of %d elements and %d tokens do not make a slice of %d bytes",
			layout.KVHeads, layout.HeadSize, layout.BlockTokens, layout.SliceBytes)
	}
	return c, nil
}

// EncodedBytes implements wire.Coding.
func (c coding) EncodedBytes() int { return c.heads * (scaleBytes + c.elements) }

// Encode implements wire.Coding.
func (c coding) Encode(dst, src []byte) {
	scales, codes := dst[:c.heads*scaleBytes], dst[c.heads*scaleBytes:]
	for h := range c.heads {
		scale := encodeHead(codes[h*c.elements:(h+1)*c.elements], src[h*c.elements*elementBytes:(h+1)*c.elements*elementBytes])
		binary.LittleEndian.PutUint32(scales[h*scaleBytes:], math.Float32bits(scale))
	}
}

// Decode implements wire.Coding.
func (c coding) Decode(dst, src []byte) error {
	scales, codes := src[:c.heads*scaleBytes], src[c.heads*scaleBytes:]
	for h := range c.heads {
		scale := binary.LittleEndian.Uint32(scales[h*scaleBytes:])
		if !validScale(scale) {
			return fmt.Errorf("head %d of %d has a scale of %g", h, c.heads, math.Float32frombits(scale))
		}
		decodeHead(dst[h*c.elements*elementBytes:(h+1)*c.elements*elementBytes], codes[h*c.elements:(h+1)*c.elements], math.Float32frombits(scale))
	}
	return nil
}
