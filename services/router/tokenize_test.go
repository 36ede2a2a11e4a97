package router_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Long texts are made into tokens a few at a time, whatever the model is called.
func TestLongTextsTakeTurns(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		text := strings.Repeat("Once upon a time. ", 8<<10)
		var wait sync.WaitGroup
		for _, model := range []string{"", "fable", "other"} {
			for range 6 {
				wait.Go(func() {
					r, err := m.inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Model: model, Text: text})
					if err != nil || len(r.GetTokenIds()) < 8<<10 {
						t.Errorf("%q: %d tokens, %v", model, len(r.GetTokenIds()), err)
					}
				})
			}
		}
		wait.Wait()
	})
}

// A token may be long: it is the text of all of them that is bounded.
func TestDetokenizeIsBounded(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		one, err := m.inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: "<|end_of_text|>", NoSpecialTokens: true})
		if err != nil || len(one.GetTokenIds()) != 1 {
			t.Fatalf("%v, %v", one, err)
		}
		const fit = 4<<20/len("<|end_of_text|>") - 1 // a gRPC client takes no longer message
		for _, c := range []struct {
			count int
			skip  bool
			code  codes.Code
			bytes int
		}{
			{count: fit, bytes: fit * len("<|end_of_text|>")},
			{count: fit + 2, code: codes.InvalidArgument},
			{count: fit + 2, skip: true},
		} {
			r, err := m.inference.Detokenize(t.Context(), &inferencev1.DetokenizeRequest{TokenIds: slices.Repeat(one.GetTokenIds(), c.count), SkipSpecialTokens: c.skip})
			if status.Code(err) != c.code || len(r.GetText()) != c.bytes || err != nil && rpc.Field(err) != "token_ids" {
				t.Errorf("%+v: %d bytes, %v", c, len(r.GetText()), err)
			}
		}
	})
}
