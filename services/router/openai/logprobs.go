package openai

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// lowest stands for probabilities that JSON has no number for.
const lowest = -9999

// finite is a logarithm that JSON can hold.
func finite(x float32) float64 {
	if out := float64(x); out > lowest && !math.IsNaN(out) && !math.IsInf(out, 0) {
		return out
	}
	return lowest
}

// chatLogprob is how likely the tokens of a chat were.
type chatLogprob struct {
	Content []chatToken `json:"content"`
	Refusal *string     `json:"refusal"`
}

type chatToken struct {
	chatCandidate
	Top []chatCandidate `json:"top_logprobs"`
}

type chatCandidate struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// add takes in tokens.
func (c *chatLogprob) add(tokens []*inferencev1.TokenLogprobs) {
	for _, t := range tokens {
		token := chatToken{candidate(t.GetText(), t.GetLogprob()), make([]chatCandidate, 0, len(t.GetTop()))}
		for _, other := range t.GetTop() {
			token.Top = append(token.Top, candidate(other.GetText(), other.GetLogprob()))
		}
		c.Content = append(c.Content, token)
	}
}

// candidate is a token with its bytes as OpenAI's API writes them; in its text those that
// make no character become U+FFFD.
func candidate(text []byte, logprob float32) chatCandidate {
	out := chatCandidate{Token: strings.ToValidUTF8(string(text), "\uFFFD"), Logprob: finite(logprob), Bytes: make([]int, len(text))}
	for i, b := range text {
		out.Bytes[i] = int(b)
	}
	return out
}

// tokenLogprobs is how likely the tokens of a completion were.
type tokenLogprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []float64            `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // in characters
}

// add takes in tokens that begin at offset, and returns where they end.
func (c *tokenLogprobs) add(tokens []*inferencev1.TokenLogprobs, offset int) int {
	for _, t := range tokens {
		name := named(t.GetText())
		top := make(map[string]float64, len(t.GetTop())+1)
		for _, other := range t.GetTop() {
			top[named(other.GetText())] = finite(other.GetLogprob())
		}
		top[name] = finite(t.GetLogprob())
		c.Tokens = append(c.Tokens, name)
		c.Logprobs = append(c.Logprobs, finite(t.GetLogprob()))
		c.Top = append(c.Top, top)
		c.Offsets = append(c.Offsets, offset)
		offset += utf8.RuneCount(t.GetText())
	}
	return offset
}

// named is the text of a token, or its bytes if they are no text, so that two
// tokens never have one name.
func named(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	var out strings.Builder
	out.WriteString("bytes:")
	for _, b := range text {
		fmt.Fprintf(&out, `\x%02x`, b)
	}
	return out.String()
}
