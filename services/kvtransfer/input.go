package kvtransfer

import (
	"fmt"
	"math"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// What one prefix may carry: far more than any model's context.
const (
	maxPrefixTokens = 1 << 22
	maxSaltBytes    = 1024
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

// parsePrefix takes a prefix from the network. Its errors are gRPC statuses.
func parsePrefix(m *kvtransferv1.Prefix) ([]int32, error) {
	ids := m.GetTokenIds()
	switch {
	case len(ids) == 0:
		return nil, rpc.InvalidArgument("prefix.token_ids", "is empty")
	case len(ids) > maxPrefixTokens:
		return nil, rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("has %d tokens: at most %d", len(ids), maxPrefixTokens))
	case len(m.GetSalt()) > maxSaltBytes:
		return nil, rpc.InvalidArgument("prefix.salt", fmt.Sprintf("has %d bytes: at most %d", len(m.GetSalt()), maxSaltBytes))
	}
	tokens := make([]int32, len(ids))
	for i, id := range ids {
		if id > math.MaxInt32 {
			return nil, rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("token %d at index %d is out of range", id, i))
		}
		tokens[i] = int32(id)
	}
	return tokens, nil
}

func checkWhole(tokens, blockTokens int) error {
	if tokens%blockTokens != 0 {
		return rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("%d tokens do not fill blocks of %d", tokens, blockTokens))
	}
	return nil
}

// checkTicket finds what is wrong with a ticket whatever is held. Its errors are
// gRPC statuses.
func checkTicket(ticket *kvtransferv1.Ticket, prefix *kvtransferv1.Prefix) error {
	switch {
	case ticket == nil:
		return rpc.InvalidArgument("ticket", "is missing: reserve blocks first")
	case len(ticket.GetAddresses()) == 0:
		return rpc.InvalidArgument("ticket.addresses", "is empty: give the receiver's addresses")
	case ticket.GetLayoutDigest() != prefix.GetLayoutDigest():
		return rpc.InvalidArgument("ticket.layout_digest", fmt.Sprintf("is %#x, but the prefix's is %#x", ticket.GetLayoutDigest(), prefix.GetLayoutDigest()))
	case int64(ticket.GetBlocks()) > int64(len(prefix.GetTokenIds())): // a block has one token at least
		return rpc.InvalidArgument("ticket.blocks", fmt.Sprintf("is %d, but the prefix has %d tokens: reserve for the same prefix", ticket.GetBlocks(), len(prefix.GetTokenIds())))
	case ticket.GetHeldBlocks() > ticket.GetBlocks():
		return rpc.InvalidArgument("ticket.held_blocks", fmt.Sprintf("%d of %d blocks cannot be held", ticket.GetHeldBlocks(), ticket.GetBlocks()))
	}
	return nil
}

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
			return layout, fmt.Sprintf("has %d %s: want 1 to %d", n.value, n.what, n.most)
		}
	}
	for _, text := range []string{m.GetModelDigest(), m.GetArithmeticClass(), m.GetElementType(), m.GetOrder()} {
		if len(text) > maxNameBytes {
			return layout, fmt.Sprintf("has a name of %d bytes: the limit is %d", len(text), maxNameBytes)
		}
	}
	return kvcache.Layout{
		ModelDigest: m.GetModelDigest(), ArithmeticClass: m.GetArithmeticClass(),
		Layers: int(m.GetLayers()), KVHeads: int(m.GetKvHeads()), HeadSize: int(m.GetHeadSize()),
		ElementType: m.GetElementType(), BlockTokens: int(m.GetBlockTokens()), Order: m.GetOrder(), SliceBytes: int(m.GetSliceBytes()),
	}, ""
}
