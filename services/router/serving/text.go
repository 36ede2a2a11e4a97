package serving

import (
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/internal/stoptext"
)

// text makes text of one request's tokens; it is the joining.Text of it.
type text struct {
	stream *tokenizer.Stream
	stops  *stoptext.Matcher
}

// newText is the text that continues prompt: a space that begins it is part of it. Special tokens
// are none, but for those that are shown.
func newText(t *tokenizer.Tokenizer, prompt []int32, stops []string, shown []int32) *text {
	stream := t.NewStreamAfter(prompt, true)
	stream.Show(shown)
	return &text{stream: stream, stops: stoptext.New(stops)}
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

// logprobsOf is what the client is told of a token's likelihood: what the worker
// said, with the bytes of the tokens filled in.
func logprobsOf(d *joining.Deliver, t *tokenizer.Tokenizer) []*inferencev1.TokenLogprobs {
	if d.Logprobs == nil {
		return nil
	}
	d.Logprobs.Text = t.TokenBytes(d.Token)
	for _, top := range d.Logprobs.GetTop() {
		top.Text = nil
		if id := int32(top.GetTokenId()); id >= 0 {
			top.Text = t.TokenBytes(id)
		}
	}
	return []*inferencev1.TokenLogprobs{d.Logprobs}
}

// tokenEvent is an event with one token, in one piece of memory.
type tokenEvent struct {
	event inferencev1.GenerateEvent
	oneof inferencev1.GenerateEvent_Tokens
	delta inferencev1.TokenDelta
	ids   [1]uint32
}

func newTokenEvent() *tokenEvent {
	e := new(tokenEvent)
	e.delta.TokenIds = e.ids[:]
	e.oneof.Tokens = &e.delta
	e.event.Event = &e.oneof
	return e
}

// set makes it the event of another token.
func (e *tokenEvent) set(d *joining.Deliver, logprobs []*inferencev1.TokenLogprobs) {
	e.event.Offset, e.ids[0] = uint64(d.Offset), uint32(d.Token)
	e.delta.Text, e.delta.Logprobs = d.Text, logprobs
}
