package preprocess_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// templated is a model with a template, and a conversation with it.
func templated(t *testing.T, template chat.Template) (*preprocess.Models, *inferencev1.GenerateRequest) {
	t.Helper()
	tok := withSpecial(t)
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return models, &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
		Messages: []*inferencev1.Message{{Role: "user", Content: "Well?"}},
	}}}
}

// Conversations beyond what is rendered at once wait their turn, or give up.
func TestFewConversationsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, most := &slow{released: make(chan struct{})}, runtime.GOMAXPROCS(0)
		models, q := templated(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for range most + 3 {
			wait.Go(func() {
				if p, err := models.Plan(t.Context(), time.Now(), q, nil); err != nil || len(p.Tokens) == 0 {
					t.Errorf("%+v, error %v", p, err)
				}
			})
		}
		synctest.Wait()
		wait.Go(func() {
			if _, err := models.Plan(ctx, time.Now(), q, nil); status.Code(err) != codes.Canceled {
				t.Errorf("error %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		if s.inside != most {
			t.Errorf("%d are rendered at once, not %d", s.inside, most)
		}
		close(s.released)
		wait.Wait()
		if s.inside != most+3 {
			t.Errorf("%d were rendered", s.inside)
		}
	})
}

// broken is a template that panics.
type broken struct{}

func (broken) Render(context.Context, chat.Conversation) (string, error) { panic("bug") }

// A panic in a template, which is survived, keeps no place.
func TestPanicsKeepNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models, q := templated(t, broken{})
		for range runtime.GOMAXPROCS(0) + 1 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			func() {
				defer cancel()
				defer func() {
					if recover() == nil {
						t.Error("no place is left")
					}
				}()
				_, _ = models.Plan(ctx, time.Now(), q, nil)
			}()
		}
	})
}

// Conversations that are rendered are not in the way of long texts, nor the other way round.
func TestLongTextsBesideConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{released: make(chan struct{})}
		models, q := templated(t, s)
		var wait sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			wait.Go(func() { _, _ = models.Plan(t.Context(), time.Now(), q, nil) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		long := &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("a ", 64<<10)}}
		if _, err := models.Plan(ctx, time.Now(), long, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a text that is too long: %v", err)
		}
		close(s.released)
		wait.Wait()
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
	template := new(counted)
	models, q := templated(t, template)
	first, err := models.Plan(t.Context(), time.Now(), q, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := models.Plan(t.Context(), time.Now(), q, preprocess.IDs(first.Tokens))
	if err != nil || !slices.Equal(again.Tokens, first.Tokens) || !slices.Equal(again.StopTokens, first.StopTokens) || template.times != 1 {
		t.Errorf("%v after %v, rendered %d times: %v", again, first, template.times, err)
	}
}
