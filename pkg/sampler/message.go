package sampler

import (
	"fmt"
	"maps"
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Parse checks how tokens are to be drawn from a vocabulary of so many. Fields that
// are not set are those of the zero Params. Its errors are *FieldError.
func Parse(in *inferencev1.Sampling, vocabulary int) (Params, error) {
	p := Params{
		Temperature:       in.GetTemperature(),
		TopK:              int(in.GetTopK()),
		TopP:              in.GetTopP(),
		MinP:              in.GetMinP(),
		TypicalP:          in.GetTypicalP(),
		Seed:              in.GetSeed(),
		RepetitionPenalty: in.GetRepetitionPenalty(),
		PresencePenalty:   in.GetPresencePenalty(),
		FrequencyPenalty:  in.GetFrequencyPenalty(),
	}
	bias := in.GetLogitBias()
	if n := len(bias); n > MaxLogitBiases {
		return Params{}, &FieldError{Field: "logit_bias", Problem: fmt.Sprintf("%d tokens are more than %d", n, MaxLogitBiases)}
	}
	forbidden := 0
	for _, id := range slices.Sorted(maps.Keys(bias)) {
		if uint64(id) >= uint64(vocabulary) {
			return Params{}, &FieldError{Field: "logit_bias", Problem: fmt.Sprintf("token %d is outside the vocabulary of %d", id, vocabulary)}
		}
		if bias[id] <= MinLogitBias {
			forbidden++
		}
		p.LogitBias = append(p.LogitBias, TokenBias{Token: int32(id), Bias: bias[id]})
	}
	if err := p.Validate(); err != nil {
		return Params{}, err
	}
	if forbidden == vocabulary {
		return Params{}, &FieldError{Field: "logit_bias", Problem: "forbids every token: leave one"}
	}
	return p, nil
}

// Message is l as workers send it, without the tokens' bytes; nil of nil.
func (l *Logprobs) Message() *inferencev1.TokenLogprobs {
	if l == nil {
		return nil
	}
	out := &inferencev1.TokenLogprobs{Logprob: l.Drawn, Rank: uint32(l.Rank)}
	if len(l.Top) > 0 {
		top := make([]inferencev1.TokenLogprob, len(l.Top)) // one allocation, not one each
		out.Top = make([]*inferencev1.TokenLogprob, len(l.Top))
		for i, t := range l.Top {
			top[i].TokenId, top[i].Logprob = uint32(t.Token), t.Logprob
			out.Top[i] = &top[i]
		}
	}
	return out
}
