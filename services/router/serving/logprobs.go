package serving

import (
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// logprobsOf is what the client is told of a token's likelihood: what the worker
// said, with the bytes of the tokens filled in.
func logprobsOf(d joining.Deliver, t *tokenizer.Tokenizer) []*inferencev1.TokenLogprobs {
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
