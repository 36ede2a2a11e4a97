package openai

import (
	"context"
	"crypto/tls"
	"net"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/trywrite"
)

// KnownFields are the members of a request that are looked for, and those that are known to
// mean nothing.
func KnownFields(route string) map[string]bool {
	return map[string]*kind{
		RouteChat: newKind(parseChat), RouteCompletions: newKind(parseCompletion), RouteResponses: newKind(parseResponse),
	}[route].known
}

// KnownEmbeddingFields is KnownFields of requests for embeddings.
func KnownEmbeddingFields() map[string]bool { return newKind(parseEmbeddings).known }

// AppendJSON is appendJSON.
func AppendJSON(b []byte, text string) []byte { return appendJSON(b, text) }

// Marshal is marshal.
func Marshal(value any) ([]byte, error) { return marshal(value) }

// EventID is the id of an event.
func EventID(request string, tokens uint64, end int) string {
	return string(appendEventID(nil, request, place{tokens, end}))
}

// ParseEventID reads it.
func ParseEventID(id string) (request string, tokens uint64, end int, ok bool) {
	request, p, ok := parseEventID(id)
	return request, p.tokens, p.end, ok
}

// CompletionRequests are the requests that the body of a completion makes.
func CompletionRequests(body string) ([]*inferencev1.GenerateRequest, error) {
	f, err := parse([]byte(body))
	if err != nil {
		return nil, err
	}
	c, err := parseCompletion(f)
	if err != nil {
		return nil, err
	}
	return c.choices, nil
}

// Held is how much of Config.MaxHeldBytes is taken.
func (h *Handler) Held() int64 {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	return h.held.bytes
}

// Conn is a connection below TLS, which Handlers write to.
type Conn struct{ conn }

// NewConn makes one of system. What waits for the client writes to waiting.
func NewConn(system, waiting net.Conn, secure *tls.Config) (c *Conn, encrypted *tls.Conn) {
	c = &Conn{conn{Conn: waiting, try: trywrite.New(system)}}
	c.encrypted = tls.Server(&c.conn, secure)
	return c, c.encrypted
}

// SendNow is conn.sendNow of some data.
func (c *Conn) SendNow(data string) error {
	return c.sendNow(append(append(make([]byte, chunkHead), data...), "\r\n"...))
}

// Context is that of a request on the connection.
func (c *Conn) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, connKey{}, &c.conn)
}

// Lock locks the connection as a write does, until Unlock.
func (c *Conn) Lock() { c.mu.Lock() }

// Unlock ends Lock.
func (c *Conn) Unlock() { c.mu.Unlock() }

// Kept is conn.kept.
func (c *Conn) Kept() bool { return c.kept() }

// Flush is conn.flush of everything.
func (c *Conn) Flush() error { return c.flush(1 << 20) }
