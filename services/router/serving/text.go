package serving

import (
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/internal/stoptext"
)

// text makes text of one request's tokens; it is the joining.Text of it.
type text struct {
	stream *tokenizer.Stream
	stops  *stoptext.Matcher
}

// newText is the text that continues prompt: a space that begins it is part of it.
func newText(t *tokenizer.Tokenizer, prompt []int32, stops []string) *text {
	return &text{stream: t.NewStreamAfter(prompt, true), stops: stoptext.New(stops)}
}

// Push takes in one token.
func (t *text) Push(token int32) (out, stop string) {
	return t.stops.Push(t.stream.Next(token))
}

// Flush ends the text: what is held back was the start of nothing.
func (t *text) Flush() (out, stop string) {
	out, stop = t.stops.Push(t.stream.Flush())
	if stop == "" {
		out += t.stops.Flush()
	}
	return out, stop
}
