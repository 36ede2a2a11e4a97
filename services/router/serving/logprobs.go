package router

import (
	"fmt"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

func checkLogprobs(q *inferencev1.GenerateRequest) error {
	if n := q.GetLogprobs(); n > sampler.MaxTopLogprobs {
		return rpc.InvalidArgument("logprobs", fmt.Sprintf("%d is outside 0 to %d", n, sampler.MaxTopLogprobs))
	}
	return nil
}

// topLogprobs is how many of the likeliest tokens the request wants to see.
func (p *plan) topLogprobs() int {
	if p.logprobs == nil {
		return 0
	}
	return int(*p.logprobs)
}

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
