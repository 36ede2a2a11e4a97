package kvtransfer

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// What a layout may say: far more than any model has.
const (
	maxLayers      = 1 << 12
	maxHeads       = 1 << 12
	maxHeadSize    = 1 << 14
	maxBlockTokens = 1 << 12
	maxSliceBytes  = 1 << 24
	maxNameBytes   = 256
)

// maxMessageBytes is the largest message that a receiver of any such layout takes: it
// is served before its layout is known.
var maxMessageBytes = max(
	wire.MaxMessageBytes(kvtransfer.DefaultMaxChunkBytes, 1),
	wire.MaxMessageBytes(maxSliceBytes, maxSliceBytes),
)

// parseLayout takes a layout from the network. The problem is empty if it makes
// sense.
func parseLayout(m *kvtransferv1.Layout) (layout kvcache.Layout, problem string) {
	if m == nil {
		return layout, "is missing"
	}
	for _, n := range []struct {
		what  string
		value uint32
		most  uint32
	}{
		{"layers", m.GetLayers(), maxLayers}, {"KV heads", m.GetKvHeads(), maxHeads}, {"elements of a head", m.GetHeadSize(), maxHeadSize},
		{"tokens of a block", m.GetBlockTokens(), maxBlockTokens}, {"bytes of a slice", m.GetSliceBytes(), maxSliceBytes},
	} {
		if n.value == 0 || n.value > n.most {
			return layout, fmt.Sprintf("has %d %s: 1 to %d make sense", n.value, n.what, n.most)
		}
	}
	for _, text := range []string{m.GetModelDigest(), m.GetArithmeticClass(), m.GetElementType(), m.GetOrder()} {
		if len(text) > maxNameBytes {
			return layout, fmt.Sprintf("has a name of %d bytes: %d are enough", len(text), maxNameBytes)
		}
	}
	return kvcache.Layout{
		ModelDigest: m.GetModelDigest(), ArithmeticClass: m.GetArithmeticClass(),
		Layers: int(m.GetLayers()), KVHeads: int(m.GetKvHeads()), HeadSize: int(m.GetHeadSize()),
		ElementType: m.GetElementType(), BlockTokens: int(m.GetBlockTokens()), Order: m.GetOrder(), SliceBytes: int(m.GetSliceBytes()),
	}, ""
}
