package client

import (
	"context"
	"iter"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Token is one token of an answer, or its end.
type Token struct {
	// ID is the token, and Offset how many came before it.
	ID     uint32
	Offset uint64
	// Text is what the token adds to the text. It is empty while a character is incomplete, or
	// while the text may be the beginning of a stop string; a later one has it then. If several
	// tokens come at once, the last has the text of all.
	Text string
	// Logprobs is there if the request asks for it.
	Logprobs *inferencev1.TokenLogprobs
	// PromptLogprobs has all tokens of the prompt, if the request asks for them: all tokens of
	// the answer share it.
	PromptLogprobs *inferencev1.PromptLogprobs
	// Accepted has the request's id, its seed and the number of its prompt tokens. All tokens
	// of an answer share it, unless the answer went on at another router.
	Accepted *inferencev1.Accepted
	// Finished is the end of the answer: reason, usage, workers, timings. It comes once, after
	// all tokens, with text that was held back, if any; ID is no token then.
	Finished *inferencev1.Finished
}

// Generate sends a request when a loop ranges over it, once each time, and yields the tokens of
// its answer as they come. The last one has Finished. An error comes last too, and is a status;
// the tokens before it stand.
//
// Leaving the loop cancels the request, and so does ctx. A request with resumable_for goes on
// for that long instead. The request is not changed, and must not be while it runs.
func (c *Client) Generate(ctx context.Context, request *inferencev1.GenerateRequest) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		var accepted *inferencev1.Accepted
		var prompt *inferencev1.PromptLogprobs
		var early string // text without a token, which goes to the next
		for event, err := range c.Events(ctx, request) {
			if err != nil {
				yield(Token{PromptLogprobs: prompt, Accepted: accepted}, err)
				return
			}
			switch e := event.GetEvent().(type) {
			case *inferencev1.GenerateEvent_Accepted:
				accepted = e.Accepted
			case *inferencev1.GenerateEvent_PromptLogprobs:
				if prompt == nil {
					prompt = new(inferencev1.PromptLogprobs)
				}
				prompt.TokenIds = append(prompt.TokenIds, e.PromptLogprobs.GetTokenIds()...)
				prompt.Logprobs = append(prompt.Logprobs, e.PromptLogprobs.GetLogprobs()...)
			case *inferencev1.GenerateEvent_Tokens:
				early += e.Tokens.GetText()
				for i, id := range e.Tokens.GetTokenIds() {
					t := Token{ID: id, Offset: event.GetOffset() + uint64(i), PromptLogprobs: prompt, Accepted: accepted}
					if i < len(e.Tokens.GetLogprobs()) {
						t.Logprobs = e.Tokens.GetLogprobs()[i]
					}
					if i == len(e.Tokens.GetTokenIds())-1 {
						t.Text, early = early, ""
					}
					if !yield(t, nil) {
						return
					}
				}
			case *inferencev1.GenerateEvent_Finished:
				yield(Token{Offset: event.GetOffset(), Text: early + e.Finished.GetText(), PromptLogprobs: prompt, Accepted: accepted, Finished: e.Finished}, nil)
			}
		}
	}
}

// Events is Generate in the messages of the protocol: Accepted, token deltas, Finished. After a
// move to another router there is another Accepted.
func (c *Client) Events(ctx context.Context, request *inferencev1.GenerateRequest) iter.Seq2[*inferencev1.GenerateEvent, error] {
	return func(yield func(*inferencev1.GenerateEvent, error) bool) {
		a := &answer{request: request}
		a.hand = func(event *inferencev1.GenerateEvent) bool {
			a.left = !yield(event, nil)
			return !a.left
		}
		err := c.try(ctx, func(router inferencev1.InferenceClient) (began, further bool, err error) {
			had := len(a.tokens)
			began, err = a.follow(ctx, router)
			return began, len(a.tokens) > had, err
		})
		if err != nil && !a.left {
			yield(nil, err)
		}
	}
}

// Answer is a whole answer.
type Answer struct {
	Text     string
	TokenIDs []uint32
	Logprobs []*inferencev1.TokenLogprobs // of each token, if the request asks for them
	// PromptLogprobs has all tokens of the prompt, if the request asks for them.
	PromptLogprobs *inferencev1.PromptLogprobs
	Accepted       *inferencev1.Accepted
	Finished       *inferencev1.Finished // nil of an answer that failed
}

// Collect waits for all tokens of an answer. With an error, the answer is what came before it.
func Collect(tokens iter.Seq2[Token, error]) (answer Answer, err error) {
	var text strings.Builder
	for token, e := range tokens {
		answer.PromptLogprobs, answer.Accepted, answer.Finished, err = token.PromptLogprobs, token.Accepted, token.Finished, e
		text.WriteString(token.Text)
		if e != nil || token.Finished != nil {
			continue
		}
		answer.TokenIDs = append(answer.TokenIDs, token.ID)
		if token.Logprobs != nil {
			answer.Logprobs = append(answer.Logprobs, token.Logprobs)
		}
	}
	answer.Text = text.String()
	return answer, err
}
