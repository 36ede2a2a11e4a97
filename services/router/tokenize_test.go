package router_test

import (
	"strings"
	"sync"
	"testing"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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
