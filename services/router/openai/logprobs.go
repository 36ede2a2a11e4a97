package openai

import (
	"fmt"
	"math"
	"strconv"
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
	Logprobs []*float64           `json:"token_logprobs"` // null: of the first token of a prompt, as in Top
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // in characters
}

// add takes in tokens that begin at offset, and returns where they end. Special tokens take no room.
func (c *tokenLogprobs) add(tokens []*inferencev1.TokenLogprobs, offset int) int {
	for _, t := range tokens {
		name := named(t.GetText())
		top := make(map[string]float64, len(t.GetTop())+1)
		for _, other := range t.GetTop() {
			top[named(other.GetText())] = finite(other.GetLogprob())
		}
		top[name] = finite(t.GetLogprob())
		c.Tokens = append(c.Tokens, name)
		c.Logprobs = append(c.Logprobs, new(finite(t.GetLogprob())))
		c.Top = append(c.Top, top)
		c.Offsets = append(c.Offsets, offset)
		if !t.GetSpecial() {
			offset += characters(t.GetText())
		}
	}
	return offset
}

// characters is how many characters begin in a text, which may begin or end within one.
func characters[T string | []byte](text T) (n int) {
	for i := range len(text) {
		if utf8.RuneStart(text[i]) {
			n++
		}
	}
	return n
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

// scored is a token of a prompt with how likely it is.
type scored struct {
	id       uint32
	first    bool // of the prompt: nothing is known of it but its bytes
	logprobs *inferencev1.TokenLogprobs
}

// score takes in how likely tokens of a prompt are.
func (p *progress) score(e *inferencev1.PromptLogprobs) {
	for i, l := range e.GetLogprobs() {
		p.scores = append(p.scores, scored{e.GetTokenIds()[i], e.GetOffset() == 0 && i == 0, l})
	}
}

// scoredBytes is what the tokens of a prompt take.
func (p *progress) scoredBytes() (bytes int64) {
	for _, t := range p.scores {
		bytes += scoredBytes([]*inferencev1.TokenLogprobs{t.logprobs})
	}
	return bytes
}

// cut is how likely a token is beside so many of the likeliest, of more.
func cut(l *inferencev1.TokenLogprobs, top uint32) *inferencev1.TokenLogprobs {
	if len(l.GetTop()) <= int(top) {
		return l
	}
	return &inferencev1.TokenLogprobs{Logprob: l.GetLogprob(), Top: l.GetTop()[:top], Text: l.GetText(), Special: l.GetSpecial(), Rank: l.GetRank()}
}

// echoed is how likely the tokens of an echo are, which has the text, and where it ends, in characters.
// Special tokens that the text does not show, such as the start token, take no room in it, nor does
// the space before a first token, which some decoders take away.
func echoed(tokens []scored, top uint32, text string) (out tokenLogprobs, end int) {
	for i, t := range tokens {
		out.add([]*inferencev1.TokenLogprobs{cut(t.logprobs, top)}, end)
		shown := string(t.logprobs.GetText())
		if rest, is := strings.CutPrefix(shown, " "); is && !strings.HasPrefix(text, shown) && strings.HasPrefix(text, rest) {
			shown = rest
		}
		if !t.logprobs.GetSpecial() || strings.HasPrefix(text, shown) {
			text, end = text[min(len(text), len(shown)):], end+characters(shown)
		}
		if t.first {
			out.Logprobs[i], out.Top[i] = nil, nil
		}
	}
	return out, end
}

// then is these tokens and those of an answer behind them, whose text begins at offset.
func (c *tokenLogprobs) then(answer *tokenLogprobs, offset int) {
	c.Tokens = append(c.Tokens, answer.Tokens...)
	c.Logprobs = append(c.Logprobs, answer.Logprobs...)
	c.Top = append(c.Top, answer.Top...)
	for _, at := range answer.Offsets {
		c.Offsets = append(c.Offsets, at+offset)
	}
}

// promptToken is how likely a token of a prompt is, and the likeliest beside it, by their ids, in
// vLLM's form; null: it is the first of the prompt.
type promptToken map[string]promptCandidate

type promptCandidate struct {
	Logprob float64 `json:"logprob"`
	Rank    uint32  `json:"rank"`
	Token   string  `json:"decoded_token"`
}

// ofPrompt is vLLM's form of tokens of a prompt.
func ofPrompt(tokens []scored, top uint32) []promptToken {
	out := make([]promptToken, len(tokens))
	for i, t := range tokens {
		if t.first {
			continue
		}
		l := cut(t.logprobs, top)
		out[i] = make(promptToken, len(l.GetTop())+1)
		add := func(id uint32, logprob float32, rank uint32, text []byte) {
			out[i][strconv.FormatUint(uint64(id), 10)] = promptCandidate{finite(logprob), rank, strings.ToValidUTF8(string(text), "\uFFFD")}
		}
		for rank, other := range l.GetTop() {
			add(other.GetTokenId(), other.GetLogprob(), uint32(rank+1), other.GetText())
		}
		add(t.id, l.GetLogprob(), l.GetRank(), l.GetText())
	}
	return out
}
