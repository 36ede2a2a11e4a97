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

// event is one GenerateEvent, with as much of it as a load generator looks at. The
// receiver of a stream has one and uses it again for each message.
type event struct {
	clock Clock
	// keep: the tokens and the text are wanted, not only their number.
	keep bool

	// at is when the message was looked at first.
	at time.Duration
	// tokens is how many a TokenDelta carries; ids and text are set only if kept.
	tokens int
	ids    []uint32
	text   []byte
	// accepted and finished are those events.
	accepted *inferencev1.Accepted
	finished *inferencev1.Finished
}

// eventCodec decodes into an event and encodes like grpc-go's codec. All but
// Accepted and Finished come thousands of times a second and are read without
// memory or reflection.
type eventCodec struct{}

// Name implements encoding.CodecV2: on the wire it is protobuf.
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

// decode reads a GenerateEvent. What is not just an offset and a TokenDelta goes
// through protobuf, which knows how to merge, skip and refuse.
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
				// The last one counts. The bytes are the transport's.
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
