package serving

import (
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

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
