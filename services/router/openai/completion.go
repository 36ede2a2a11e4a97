package openai

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// parseCompletion translates a completion.
func parseCompletion(f *fields) (*parsedRequest, error) {
	c := &parsedRequest{route: RouteCompletions}
	q := c.common(f)
	q.StructuredOutput, c.form = format(f, "response_format", responseFormat(f))
	if suffix := f.text("suffix"); suffix != "" {
		f.wrong(unsupported("suffix", "text after the completion is not supported; leave it out"))
	}
	if top := f.integerIn("logprobs", 0, sampler.MaxTopLogprobs); top != nil {
		c.logprobs = true
		q.Logprobs = proto.Uint32(uint32(*top))
	}
	c.best(f, q)
	if special, given := f.boolean("add_special_tokens"); given {
		q.NoSpecialTokens = !special
	}
	asked := prompts(f, q, "prompt", maxChoices)
	if f.bad == nil && len(asked)*c.n > maxChoices {
		f.wrong(invalid("prompt", fmt.Sprintf("%d prompts with %d each make %d answers, more than %d", len(asked), c.n, len(asked)*c.n, maxChoices)))
	}
	if c.ids && len(asked) > 1 {
		f.wrong(unsupported("resumable_for", "needs one prompt: only a stream of one answer can be resumed"))
	}
	if echo, _ := f.boolean("echo"); echo && f.bad == nil {
		c.echo(f, asked)
	}
	if f.bad != nil {
		return nil, f.bad
	}
	c.repeat(asked)
	return c, nil
}

// best reads best_of: so many answers are made, and n of them shown.
func (c *parsedRequest) best(f *fields, q *inferencev1.GenerateRequest) {
	best := f.integerIn("best_of", 1, maxN)
	switch {
	case best == nil || *best == int64(c.n):
		return
	case *best < int64(c.n):
		f.wrong(invalid("best_of", fmt.Sprintf("%d is below n: there are not %d answers to choose", *best, c.n)))
	case c.stream:
		f.wrong(unsupported("best_of", "above n is not supported with stream: the best answers are known when all have ended; leave one of them out"))
	}
	c.n = int(*best)
	if q.Logprobs == nil {
		q.Logprobs = proto.Uint32(0)
	}
}

// noBest refuses best_of, unless it asks for nothing: chats and responses have none.
func (c *parsedRequest) noBest(f *fields) {
	if best := f.integerIn("best_of", 1, maxN); best != nil && *best != int64(c.n) {
		f.wrong(unsupported("best_of", "is of completions: ask for n answers and choose among them, or leave it out"))
	}
}

// echo keeps the prompts, to be said before the answers, and with logprobs how likely their tokens
// are.
func (c *parsedRequest) echo(f *fields, prompts []*inferencev1.GenerateRequest) {
	c.echoes = make([]string, len(prompts))
	for i, q := range prompts {
		c.echoes[i] = q.GetPrompt()
		c.echoesTokens = c.echoesTokens || q.GetTokenIds() != nil
		if c.logprobs {
			c.echoTop = q.Logprobs
			q.PromptLogprobs = proto.Uint32(max(q.GetPromptLogprobs(), q.GetLogprobs()))
		}
	}
	switch {
	case c.echoTop == nil || !c.stream:
	case c.n > 1:
		f.wrong(unsupported("echo", "together with logprobs and stream needs n = 1; leave one of them out"))
	case c.ids:
		f.wrong(unsupported("resumable_for", "is not supported together with echo and logprobs; leave one of them out"))
	}
}

// prompts reads a text, texts, token ids, or lists of token ids, at most so many, and gives a
// request for each.
func prompts(f *fields, q *inferencev1.GenerateRequest, name string, most int) (out []*inferencev1.GenerateRequest) {
	raw, given := f.raw(name)
	if !given {
		f.wrong(refuse(name, codeMissing, "is missing; give a text, token ids, or an array of either"))
		return nil
	}
	if raw[0] == '"' {
		return append(out, withText(q, f.text(name)))
	}
	const want = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"
	count, first := elements(raw)
	switch {
	case raw[0] != '[':
		f.wrong(wrongType(name, want))
	case count == 0:
		f.wrong(invalid(name, "is empty"))
	case count > most && (first == '"' || first == '['):
		f.wrong(invalid(name, fmt.Sprintf("%d %ss are more than %d", count, name, most)))
	}
	switch first {
	case '"':
		for _, text := range f.texts(name, want, most) {
			out = append(out, withText(q, text))
		}
	case '[':
		var lists [][]uint32
		f.numbers(name, &lists, want)
		for _, ids := range lists {
			out = append(out, withTokens(q, ids))
		}
	default:
		var ids []uint32
		f.numbers(name, &ids, want)
		out = append(out, withTokens(q, ids))
	}
	return out
}

func withText(q *inferencev1.GenerateRequest, text string) *inferencev1.GenerateRequest {
	q = shallow(q)
	q.Input = &inferencev1.GenerateRequest_Prompt{Prompt: text}
	return q
}

func withTokens(q *inferencev1.GenerateRequest, ids []uint32) *inferencev1.GenerateRequest {
	q = shallow(q)
	q.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}}
	return q
}
