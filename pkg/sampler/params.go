package sampler

import (
	"fmt"
	"math"
)

// Params says how a token is drawn from logits. The zero value is greedy.
type Params struct {
	// Temperature divides the logits; 0 takes the likeliest token.
	Temperature float32
	// TopK keeps the k likeliest tokens; 0 keeps all.
	TopK int
	// TopP keeps the likeliest tokens whose probabilities first add up to this;
	// 0 and 1 keep all.
	TopP float32
	// MinP keeps tokens at least this many times as likely as the likeliest.
	MinP float32
	// TypicalP keeps the tokens whose surprise is the nearest to what is expected, until
	// their probabilities add up to this; 0 and 1 keep all.
	TypicalP float32
	// Seed of the counter-based generator.
	Seed uint64
	// RepetitionPenalty divides the logits above 0, and multiplies the others, of
	// tokens that are in the prompt or were generated; 0 and 1 change nothing.
	RepetitionPenalty float32
	// PresencePenalty is taken off the logits of tokens that were generated.
	PresencePenalty float32
	// FrequencyPenalty is taken off the logits of tokens that were generated, once
	// for each time.
	FrequencyPenalty float32
	// LogitBias is added to the logits of tokens: sorted by token, each at most
	// once. It is not changed by anyone.
	LogitBias []TokenBias
	// MinTokens: as long as fewer were generated, none of Ends is drawn, unless nothing else
	// can be.
	MinTokens int
	// Ends are the tokens that end a text. Nobody changes them.
	Ends []int32
}

// TokenBias is added to the logit of one token.
type TokenBias struct {
	Token int32
	// Bias is from MinLogitBias, which forbids the token, to MaxLogitBias.
	Bias float32
}

// The largest values that are accepted.
const (
	maxTemperature       = 100
	MaxRepetitionPenalty = 100
	MaxPenalty           = 2 // of presence and frequency, and -MaxPenalty the smallest
	MaxLogitBias         = 100
	MinLogitBias         = -100 // forbids
	MaxLogitBiases       = 1024
)

// FieldError is a parameter out of its range.
type FieldError struct {
	// Field is the parameter's name as requests spell it.
	Field string
	// Problem says what is wrong and what is allowed.
	Problem string
}

// Error names the field and the problem.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate checks ranges. Its error is a *FieldError.
func (p Params) Validate() error {
	for _, f := range []struct {
		name      string
		value     float32
		low, high int
	}{
		{"temperature", p.Temperature, 0, maxTemperature},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"typical_p", p.TypicalP, 0, 1},
		{"repetition_penalty", p.RepetitionPenalty, 0, MaxRepetitionPenalty},
		{"presence_penalty", p.PresencePenalty, -MaxPenalty, MaxPenalty},
		{"frequency_penalty", p.FrequencyPenalty, -MaxPenalty, MaxPenalty},
	} {
		if !within(f.value, f.low, f.high) {
			return &FieldError{f.name, fmt.Sprintf("%v is outside %d to %d", f.value, f.low, f.high)}
		}
	}
	if p.TopK < 0 || p.TopK > math.MaxInt32 {
		return &FieldError{"top_k", fmt.Sprintf("%d is outside 0 to %d", p.TopK, math.MaxInt32)}
	}
	if p.MinTokens < 0 {
		return &FieldError{"min_tokens", fmt.Sprintf("%d is negative", p.MinTokens)}
	}
	return p.validateBias()
}

func (p Params) validateBias() error {
	if n := len(p.LogitBias); n > MaxLogitBiases {
		return &FieldError{"logit_bias", fmt.Sprintf("%d tokens are more than %d", n, MaxLogitBiases)}
	}
	for i, b := range p.LogitBias {
		switch {
		case b.Token < 0:
			return &FieldError{"logit_bias", fmt.Sprintf("token %d is negative", b.Token)}
		case i > 0 && b.Token <= p.LogitBias[i-1].Token:
			return &FieldError{"logit_bias", fmt.Sprintf("token %d does not come after token %d: sort them", b.Token, p.LogitBias[i-1].Token)}
		case !within(b.Bias, MinLogitBias, MaxLogitBias):
			return &FieldError{"logit_bias", fmt.Sprintf("%v for token %d is outside %d to %d", b.Bias, b.Token, MinLogitBias, MaxLogitBias)}
		}
	}
	return nil
}

// within is false for NaN.
func within(v float32, low, high int) bool { return v >= float32(low) && v <= float32(high) }
