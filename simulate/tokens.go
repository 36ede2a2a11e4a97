package simulate

import (
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// streamBytes is what one more stream's message weighs that goes out in the same write: the
// transport of gRPC sends together what waits in a connection.
const streamBytes = 40

// tokens is what the streams of one connection have to say after a step, on its way to the
// router. It is used again when it has arrived.
type tokens struct {
	connection *connection
	parts      []streamTokens
	ids        []uint32 // of all parts, one after the other
	event      workerv1.DecodeEvent
	of         workerv1.DecodeEvent_Tokens
	list       workerv1.Tokens
	read       int
}

// streamTokens is one stream's part.
type streamTokens struct {
	stream *stream
	offset uint32 // of its first
	count  int32
}

// drew adds a token to what a connection has to say. It reports whether that is the first.
func (n *connection) drew(s *stream, offset int, token int32) (first bool) {
	t := n.drawn
	if first = t == nil; first {
		t = reuse(&n.router.cluster.tokens)
		t.of.Tokens, t.event.Event = &t.list, &t.of
		t.connection, n.drawn = n, t
	}
	if last := len(t.parts) - 1; last >= 0 && t.parts[last].stream == s {
		t.parts[last].count++
	} else {
		t.parts = append(t.parts, streamTokens{s, uint32(offset), 1})
	}
	t.ids = append(t.ids, uint32(token))
	return first
}

// flush sends the tokens that wait.
func (n *connection) flush() {
	if t := n.drawn; t != nil {
		n.drawn = nil
		n.back.post(messageBytes+streamBytes*(len(t.parts)-1), t)
	}
}

// happen is its arrival.
func (t *tokens) happen() {
	for i := range t.parts {
		q := t.parts[i].stream.request
		t.read += q.join.Fetch() + q.recentCount
	}
	ids := t.ids
	for i := range t.parts {
		p := &t.parts[i]
		t.list.Offset, t.list.TokenIds, ids = p.offset, ids[:p.count:p.count], ids[p.count:]
		if s := p.stream; !s.over {
			s.request.drawn(joining.DecodeMessage{Attempt: s.name.Attempt, Event: &t.event})
		}
	}
	clear(t.parts)
	c := t.connection.router.cluster
	t.connection, t.parts, t.ids = nil, t.parts[:0], t.ids[:0]
	c.tokens = append(c.tokens, t)
}
