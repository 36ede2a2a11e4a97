package cli

import (
	"encoding/json"
	"math"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// logprobsJSON says how likely the token of its line was.
type logprobsJSON struct {
	Logprob logprobJSON      `json:"logprob"`
	Top     []topLogprobJSON `json:"top"`
}

// topLogprobJSON is one of the likeliest tokens. Bytes of its text that are no
// UTF-8 are U+FFFD.
type topLogprobJSON struct {
	TokenID uint32      `json:"token_id"`
	Text    string      `json:"text"`
	Logprob logprobJSON `json:"logprob"`
}

// logprobJSON is a natural logarithm. JSON has no minus infinity: impossible is
// unlikely.
type logprobJSON float32

// impossible is what OpenAI's API says of tokens that are too unlikely to tell.
const impossible = -9999

// MarshalJSON implements json.Marshaler.
func (l logprobJSON) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(l), -1) {
		l = impossible
	}
	return json.Marshal(float32(l))
}

// logprobsLine is nil of nil.
func logprobsLine(l *inferencev1.TokenLogprobs) *logprobsJSON {
	if l == nil {
		return nil
	}
	out := &logprobsJSON{Logprob: logprobJSON(l.GetLogprob()), Top: []topLogprobJSON{}}
	for _, t := range l.GetTop() {
		out.Top = append(out.Top, topLogprobJSON{TokenID: t.GetTokenId(), Text: string(t.GetText()), Logprob: logprobJSON(t.GetLogprob())})
	}
	return out
}
