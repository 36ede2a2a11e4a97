package preprocess

import (
	"context"
	"fmt"
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
	out := &inferencev1.TokenizeResponse{TokenIds: make([]uint32, len(tokens))}
	for k, id := range tokens {
		out.TokenIds[k] = uint32(id)
	}
	return out, nil
}

// Detokenize turns tokens into text.
func (s *Models) Detokenize(q *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	m, err := s.Model(q.GetModel())
	if err != nil {
		return nil, err
	}
	if n := len(q.GetTokenIds()); n > maxDetokenizeID {
		return nil, rpc.InvalidArgument("token_ids", fmt.Sprintf("%d tokens are more than %d", n, maxDetokenizeID))
	}
	ids := make([]int32, len(q.GetTokenIds()))
	for k, id := range q.GetTokenIds() {
		if uint64(id) >= uint64(m.Spec.VocabSize) {
			return nil, rpc.InvalidArgument(fmt.Sprintf("token_ids[%d]", k), outside(id, m))
		}
		ids[k] = int32(id)
	}
	return &inferencev1.DetokenizeResponse{Text: m.Tokenizer.Decode(ids, q.GetSkipSpecialTokens())}, nil
}
