package preprocess_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/model"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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

// counted counts what is rendered.
type counted struct{ times int }

func (c *counted) Render(context.Context, chat.Conversation) (string, error) {
	c.times++
	return "Well, well.", nil
}

// A conversation that was rendered is not rendered again.
func TestRenderedOnce(t *testing.T) {
	tok, template := withSpecial(t), new(counted)
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	q := &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
		Messages: []*inferencev1.Message{{Role: "user", Content: "Well?"}},
	}}}
	first, err := models.Plan(t.Context(), time.Now(), q)
	if err != nil {
		t.Fatal(err)
	}
	again, err := models.PlanAgain(t.Context(), time.Now(), q, preprocess.IDs(first.Tokens))
	if err != nil || !slices.Equal(again.Tokens, first.Tokens) || !slices.Equal(again.StopTokens, first.StopTokens) || template.times != 1 {
		t.Errorf("%v after %v, rendered %d times: %v", again, first, template.times, err)
	}
}
