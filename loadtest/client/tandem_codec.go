package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// event is the decoded part of a GenerateEvent that a load generator needs. Each stream
// reuses one.
type event struct {
	clock Clock
	// keep: keep tokens and text, not only their number.
	keep bool

	// at is when the message arrived.
	at time.Duration
	// tokens in a TokenDelta; ids and text are set only with keep.
	tokens int
	ids    []uint32
	text   []byte
	// accepted and finished are set for those events.
	accepted *inferencev1.Accepted
	finished *inferencev1.Finished
}

// eventCodec decodes into an event and encodes like grpc-go's codec. Token messages come
// thousands of times a second and are decoded without allocation or reflection.
type eventCodec struct{}

// Name implements encoding.CodecV2. The wire format is protobuf.
func (eventCodec) Name() string { return encodingproto.Name }

func (eventCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(encodingproto.Name).Marshal(v)
}

func (eventCodec) Unmarshal(data mem.BufferSlice, v any) error {
	e, ok := v.(*event)
	if !ok {
		return fmt.Errorf("decode into %T: this codec decodes only events", v)
	}
	e.at = e.clock.Now()
	e.tokens, e.ids, e.text, e.accepted, e.finished = 0, e.ids[:0], nil, nil, nil
	if len(data) == 1 {
		return e.decode(data[0].ReadOnlyData())
	}
	return e.decode(data.Materialize())
}

// Fields of GenerateEvent and TokenDelta.
const (
	eventOffset   = 1
	eventTokens   = 3
	deltaTokenIDs = 1
	deltaText     = 2
)

// decode decodes a GenerateEvent. Anything but an offset and a TokenDelta goes through
// the protobuf library, which merges, skips and rejects.
func (e *event) decode(b []byte) error {
	var delta []byte
	seen := false
	for rest := b; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
		switch {
		case number == eventOffset && kind == protowire.VarintType:
			_, n = protowire.ConsumeVarint(rest)
		case number == eventTokens && kind == protowire.BytesType && !seen:
			delta, n = protowire.ConsumeBytes(rest)
			seen = true
		default:
			return e.decodeWhole(b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
	}
	return e.decodeDelta(delta)
}

func (e *event) decodeDelta(b []byte) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case number == deltaTokenIDs && kind == protowire.BytesType:
			var packed []byte
			packed, n = protowire.ConsumeBytes(b)
			for len(packed) > 0 {
				id, size := protowire.ConsumeVarint(packed)
				if size < 0 {
					return protowire.ParseError(size)
				}
				e.token(id)
				packed = packed[size:]
			}
		case number == deltaTokenIDs && kind == protowire.VarintType:
			var id uint64
			id, n = protowire.ConsumeVarint(b)
			e.token(id)
		case number == deltaText && kind == protowire.BytesType:
			var text []byte
			text, n = protowire.ConsumeBytes(b)
			if e.keep {
				// The last one counts. Copy, since the transport owns the bytes.
				e.text = append([]byte(nil), text...)
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}

func (e *event) token(id uint64) {
	e.tokens++
	if e.keep {
		e.ids = append(e.ids, uint32(id))
	}
}

func (e *event) decodeWhole(b []byte) error {
	var whole inferencev1.GenerateEvent
	if err := proto.Unmarshal(b, &whole); err != nil {
		return errors.New("not a GenerateEvent: is the server a router of this version?")
	}
	e.accepted, e.finished = whole.GetAccepted(), whole.GetFinished()
	ids := whole.GetTokens().GetTokenIds()
	e.tokens = len(ids)
	if e.keep {
		e.ids = append(e.ids, ids...)
		e.text = append([]byte(whole.GetTokens().GetText()), whole.GetFinished().GetText()...)
	}
	return nil
}
