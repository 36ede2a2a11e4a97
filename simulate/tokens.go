package simulate

import (
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// tokens is a message with tokens on its way to the router. It is used again when it has
// arrived.
type tokens struct {
	stream *stream
	event  workerv1.DecodeEvent
	of     workerv1.DecodeEvent_Tokens
	list   workerv1.Tokens
}

// newTokens is a message without tokens yet, of which the first will be at offset.
func (c *Cluster) newTokens(s *stream, offset int) *tokens {
	var t *tokens
	if last := len(c.tokens) - 1; last >= 0 {
		t, c.tokens = c.tokens[last], c.tokens[:last]
	} else {
		t = new(tokens)
		t.of.Tokens, t.event.Event = &t.list, &t.of
	}
	t.stream, t.list.Offset, t.list.TokenIds = s, uint32(offset), t.list.TokenIds[:0]
	return t
}

// happen is its arrival.
func (t *tokens) happen() {
	s := t.stream
	if t.stream = nil; !s.over {
		s.request.drawn(joining.DecodeMessage{Attempt: s.name.Attempt, Event: &t.event})
	}
	s.request.router.cluster.tokens = append(s.request.router.cluster.tokens, t)
}
