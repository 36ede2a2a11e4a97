package preprocess

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// Tokenize turns text into tokens.
func (s *Models) Tokenize(ctx context.Context, q *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	m, err := s.Model(q.GetModel())
	if err != nil {
		return nil, err
	}
	switch {
	case len(q.GetText()) > maxTextBytes:
		return nil, rpc.InvalidArgument("text", fmt.Sprintf("has %d bytes, more than %d", len(q.GetText()), maxTextBytes))
	case !utf8.ValidString(q.GetText()):
		return nil, rpc.InvalidArgument("text", "is not valid UTF-8")
	}
	// A byte is at most one token; the template adds a few.
	tokens, err := m.encode(ctx, q.GetText(), !q.GetNoSpecialTokens(), 2*maxTextBytes)
	switch {
	case ctx.Err() != nil:
		return nil, clienterr.Gone(ctx)
	case err != nil:
		return nil, rpc.InvalidArgument("text", err.Error())
	}
	return &inferencev1.TokenizeResponse{TokenIds: IDs(tokens)}, nil
}

// Detokenize turns tokens into text.
func (s *Models) Detokenize(ctx context.Context, q *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	m, err := s.Model(q.GetModel())
	if err != nil {
		return nil, err
	}
	if n := len(q.GetTokenIds()); n > maxDetokenizeID {
		return nil, rpc.InvalidArgument("token_ids", fmt.Sprintf("%d tokens are more than %d", n, maxDetokenizeID))
	}
	ids, err := tokensOf(q.GetTokenIds(), "token_ids", m)
	if err != nil {
		return nil, err
	}
	bytes := m.TextBytes(ids, q.GetSkipSpecialTokens(), maxDetokenized)
	if bytes > maxDetokenized {
		return nil, rpc.InvalidArgument("token_ids", fmt.Sprintf("their text has more than %d bytes: send fewer at a time", maxDetokenized))
	}
	done, err := m.textTurn(ctx, bytes)
	if err != nil {
		return nil, clienterr.Gone(ctx)
	}
	defer done()
	return &inferencev1.DetokenizeResponse{Text: m.Tokenizer.Decode(ids, q.GetSkipSpecialTokens())}, nil
}

// TextBytes is how many bytes tokens stand for, counted until there are more than most. Their text can
// be longer, by what stands for bytes that make no character.
func (m *Model) TextBytes(tokens []int32, skipSpecial bool, most int) (bytes int) {
	for _, id := range tokens {
		if skipSpecial && m.Tokenizer.IsSpecial(id) {
			continue
		}
		if bytes += len(m.Tokenizer.TokenBytes(id)); bytes > most {
			break
		}
	}
	return bytes
}

// tokensOf is the token ids of a field, each of which has to be in the model's vocabulary.
func tokensOf(ids []uint32, field string, m *Model) ([]int32, error) {
	tokens := make([]int32, len(ids))
	for i, id := range ids {
		if uint64(id) >= uint64(m.Spec.VocabSize) {
			return nil, rpc.InvalidArgument(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("token %d is outside the vocabulary of %d", id, m.Spec.VocabSize))
		}
		tokens[i] = int32(id)
	}
	return tokens, nil
}

// IDs are tokens as messages have them, one part after the other.
func IDs(parts ...[]int32) []uint32 {
	var ids []uint32
	for _, tokens := range parts {
		ids = slices.Grow(ids, len(tokens))
		for _, id := range tokens {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}
