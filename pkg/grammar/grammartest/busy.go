// Package grammartest helps to test what uses grammars. Tests alone import it.
package grammartest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// held is a context that keeps a compilation from going on until it is released.
type held struct {
	context.Context
	released <-chan struct{}
}

func (h held) Err() error {
	<-h.released
	return h.Context.Err()
}

// Fill has so many calls of several tenants wait for a cache that it refuses the next one, until release or the
// end of the test.
func Fill(t testing.TB, c *grammar.Cache) (release func()) { return FillBy(t, c, "a", "b", "c", "d") }

// FillBy has so many calls of some tenants wait that one is refused.
func FillBy(t testing.TB, c *grammar.Cache, tenants ...string) (release func()) {
	t.Helper()
	released := make(chan struct{})
	ctx := held{context.WithoutCancel(t.Context()), released}
	refused := make(chan error, grammar.MaxWaiting+1)
	var calls sync.WaitGroup
	for i := range grammar.MaxWaiting + 1 {
		calls.Go(func() {
			_, _, err := c.Get(ctx, tenants[i%len(tenants)], &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: fmt.Sprintf("a{%d}", i)}})
			if err != nil {
				refused <- err
			}
		})
	}
	release = sync.OnceFunc(func() { close(released); calls.Wait() })
	t.Cleanup(release)
	if err := <-refused; !errors.Is(err, grammar.ErrBusy) {
		t.Fatalf("a full cache refuses with %v", err)
	}
	return release
}
