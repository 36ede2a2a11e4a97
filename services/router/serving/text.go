package serving

import (
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/preprocess"
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

// logprobsOf is what the client is told of a token's likelihood: what the worker
// said, with the bytes of the tokens filled in. Special tokens are no text, but for those that are shown.
func logprobsOf(d *joining.Deliver, t *tokenizer.Tokenizer, shown []int32) []*inferencev1.TokenLogprobs {
	if d.Logprobs == nil {
		return nil
	}
	d.Logprobs.Text, d.Logprobs.Special = t.TokenBytes(d.Token), t.IsSpecial(d.Token) && !slices.Contains(shown, d.Token)
	for _, top := range d.Logprobs.GetTop() {
		top.Text = nil
		if id := int32(top.GetTokenId()); id >= 0 {
			top.Text = t.TokenBytes(id)
		}
	}
	return []*inferencev1.TokenLogprobs{d.Logprobs}
}

// promptEvent is how likely tokens of the prompt are, as its client is told. The first token of the
// prompt, of which nothing is known, comes with the second.
func promptEvent(d joining.DeliverPrompt, p *preprocess.Plan) *inferencev1.GenerateEvent {
	out := &inferencev1.PromptLogprobs{Offset: uint32(d.Offset)}
	add := func(position int, l *inferencev1.TokenLogprobs) {
		token := p.Tokens[position]
		filled := logprobsOf(&joining.Deliver{Token: token, Logprobs: l}, p.Model.Tokenizer, nil)
		out.TokenIds, out.Logprobs = append(out.TokenIds, uint32(token)), append(out.Logprobs, filled...)
	}
	if d.Offset == 1 {
		out.Offset = 0
		add(0, new(inferencev1.TokenLogprobs))
	}
	for i, l := range d.Logprobs {
		add(d.Offset+i, l)
	}
	return &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: out}}
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
