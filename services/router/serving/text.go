package serving

import (
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/stoptext"
)

// text makes text of one request's tokens; it is the joining.Text of it.
type text struct {
	stream            *tokenizer.Stream
	stops             *stoptext.Matcher
	tokensBeforeStops int  // tokens to come that cannot complete a stop
	beforeStops       bool // the last token was one of them
}

// newText is the text that continues prompt: a space that begins it is part of it. A stop that is
// complete with the first least tokens does not count. Special tokens are no text, but for those
// that are shown.
func newText(t *tokenizer.Tokenizer, prompt []int32, stops []string, least int, shown []int32) *text {
	stream := t.NewStreamAfter(prompt, true)
	stream.Show(shown)
	return &text{stream: stream, stops: stoptext.New(stops), tokensBeforeStops: least}
}

// Push takes in one token.
func (t *text) Push(token int32) (out, stop string) {
	if t.beforeStops = t.tokensBeforeStops > 0; t.beforeStops {
		t.tokensBeforeStops--
	}
	return t.push(t.stream.Next(token))
}

func (t *text) push(text string) (out, stop string) {
	if t.beforeStops {
		return t.stops.Skip(text), ""
	}
	return t.stops.Push(text)
}

// Flush ends the text: what is held back was the start of nothing.
func (t *text) Flush() (out, stop string) {
	out, stop = t.push(t.stream.Flush())
	if stop == "" {
		out += t.stops.Flush()
	}
	return out, stop
}
