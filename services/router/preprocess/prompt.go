package preprocess

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// promptOf is the prompt in tokens: at least one, and few enough that one more fits. What a conversation
// was rendered to stands for it, unless that is nil.
func promptOf(ctx context.Context, q *inferencev1.GenerateRequest, m *Model, rendered []uint32) ([]int32, error) {
	limit := m.Spec.ContextTokens
	switch input := q.GetInput().(type) {
	case *inferencev1.GenerateRequest_TokenIds:
		ids := input.TokenIds.GetIds()
		if len(ids) == 0 {
			return nil, rpc.InvalidArgument("token_ids", "is empty; give at least one token")
		}
		if len(ids) >= limit {
			return nil, tooLong("token_ids", fmt.Sprintf("%d tokens", len(ids)), limit)
		}
		return tokensOf(ids, "token_ids.ids", m)
	case *inferencev1.GenerateRequest_Prompt:
		if input.Prompt == "" {
			return nil, rpc.InvalidArgument("prompt", "is empty; give some text")
		}
		if !utf8.ValidString(input.Prompt) {
			return nil, rpc.InvalidArgument("prompt", "is not valid UTF-8")
		}
		return encode(ctx, "prompt", input.Prompt, !q.GetNoSpecialTokens(), m)
	case *inferencev1.GenerateRequest_Conversation:
		if rendered != nil {
			return tokensOf(rendered, "conversation", m)
		}
		text, err := renderConversation(ctx, input.Conversation, m)
		if err != nil {
			return nil, err
		}
		// The template has put the start token there, if there is to be one.
		return encode(ctx, "conversation", text, false, m)
	}
	return nil, rpc.InvalidArgument("prompt", "neither prompt nor token_ids nor conversation is given; give one of them")
}

// encode makes tokens of text. What spells a special token becomes that token.
func encode(ctx context.Context, field, text string, addSpecial bool, m *Model) ([]int32, error) {
	limit := m.Spec.ContextTokens
	tokens, err := m.encode(ctx, text, addSpecial, limit-1)
	switch {
	case errors.Is(err, tokenizer.ErrTooLong):
		return nil, tooLong(field, fmt.Sprintf("more than %d tokens (%d bytes)", limit-1, len(text)), limit)
	case ctx.Err() != nil:
		return nil, clienterr.Gone(ctx)
	case err != nil:
		return nil, rpc.InvalidArgument(field, err.Error())
	case len(tokens) == 0:
		return nil, rpc.InvalidArgument(field, "has no tokens; give some text")
	}
	return tokens, nil
}

// tooLong refuses a prompt as OpenAI does, whose words clients look for.
func tooLong(field, has string, limit int) error {
	return rpc.ContextLength(field, fmt.Sprintf("This model's maximum context length is %d tokens: the prompt has %s, and one token has to fit behind it; shorten it to at most %d", limit, has, limit-1))
}

// tooMany refuses a completion that does not fit behind its prompt, as OpenAI and vLLM do:
// an answer that was cut in silence looks like one that the model ended.
func tooMany(prompt, completion, limit int) error {
	return rpc.ContextLength("max_tokens", fmt.Sprintf("This model's maximum context length is %d tokens: you requested %d tokens, %d in the prompt and %d in the completion; ask for at most %d in the completion, shorten the prompt, or name no limit to get as many as fit",
		limit, prompt+completion, prompt, completion, limit-prompt))
}

// turn waits for a place to render a conversation, or to handle a long text: each takes several times its
// length of memory meanwhile. There are as many as processors of each kind, so that long texts of one
// client do not keep all conversations waiting. The caller calls done afterwards, and before it takes
// another turn.
func turn(ctx context.Context, places chan struct{}) (done func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// longText is the length from which on a text is made into tokens, or of tokens, in turn. Bytes.
const longText = 64 << 10

// textTurn is the turn of a text of so many bytes.
func (m *Model) textTurn(ctx context.Context, bytes int) (done func(), err error) {
	if bytes <= longText {
		return func() {}, nil
	}
	return turn(ctx, m.handling)
}

// encode is the tokenizer's EncodeContext, in turn if the text is long.
func (m *Model) encode(ctx context.Context, text string, addSpecial bool, most int) ([]int32, error) {
	done, err := m.textTurn(ctx, len(text))
	if err != nil {
		return nil, err
	}
	defer done()
	return m.Tokenizer.EncodeContext(ctx, text, addSpecial, most)
}
