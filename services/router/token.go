package router

import (
	"google.golang.org/protobuf/encoding/protowire"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// encodedToken is a GenerateEvent with one token and no log probabilities, as protobuf encodes
// it. They are nearly all that a router sends.
type encodedToken struct {
	offset uint64
	id     uint32
	text   string
}

var _ rpc.Encoded = (*encodedToken)(nil)

// set takes over an event if it is such a one.
func (t *encodedToken) set(event *inferencev1.GenerateEvent) bool {
	delta := event.GetTokens()
	if delta == nil || len(delta.GetTokenIds()) != 1 || len(delta.GetLogprobs()) > 0 {
		return false
	}
	t.offset, t.id, t.text = event.GetOffset(), delta.GetTokenIds()[0], delta.GetText()
	return true
}

// Fields of GenerateEvent and of TokenDelta.
const (
	eventOffsetField = 1
	eventTokensField = 3
	deltaIDsField    = 1
	deltaTextField   = 2
)

// Size is how long it is at most: four tags and lengths, two numbers, and the text.
func (t *encodedToken) Size() int { return 48 + len(t.text) }

// AppendTo appends it to b. Each tag takes a byte.
func (t *encodedToken) AppendTo(b []byte) []byte {
	if t.offset != 0 {
		b = protowire.AppendTag(b, eventOffsetField, protowire.VarintType)
		b = protowire.AppendVarint(b, t.offset)
	}
	idBytes := protowire.SizeVarint(uint64(t.id))
	length := 1 + protowire.SizeBytes(idBytes)
	if t.text != "" {
		length += 1 + protowire.SizeBytes(len(t.text))
	}
	b = protowire.AppendTag(b, eventTokensField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(length))
	b = protowire.AppendTag(b, deltaIDsField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(idBytes))
	b = protowire.AppendVarint(b, uint64(t.id))
	if t.text != "" {
		b = protowire.AppendTag(b, deltaTextField, protowire.BytesType)
		b = protowire.AppendString(b, t.text)
	}
	return b
}
