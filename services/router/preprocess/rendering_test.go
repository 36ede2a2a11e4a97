package preprocess_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// slow is a template that renders until it is let go on.
type slow struct {
	mu       sync.Mutex
	inside   int
	released chan struct{}
}

func (s *slow) Render(context.Context, chat.Conversation) (string, error) {
	s.mu.Lock()
	s.inside++
	s.mu.Unlock()
	<-s.released
	return "rendered", nil
}

// Conversations beyond what is rendered at once wait their turn, or give up.
func TestFewConversationsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{released: make(chan struct{})}
		bounded := preprocess.BoundedChat(s, 2)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for range 5 {
			wait.Go(func() {
				if prompt, err := bounded.Render(t.Context(), chat.Conversation{}); prompt != "rendered" || err != nil {
					t.Errorf("%q, error %v", prompt, err)
				}
			})
		}
		synctest.Wait()
		wait.Go(func() {
			if _, err := bounded.Render(ctx, chat.Conversation{}); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		if s.inside != 2 {
			t.Errorf("%d are rendered at once", s.inside)
		}
		close(s.released)
		wait.Wait()
		if s.inside != 5 {
			t.Errorf("%d were rendered", s.inside)
		}
	})
}
