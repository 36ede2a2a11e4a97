package joining_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A worker that does not say what was asked, or says what was not, has failed.
func TestWrongLogprobsFailTheTry(t *testing.T) {
	of := func(top ...int) (all []*inferencev1.TokenLogprobs) {
		for _, n := range top {
			all = append(all, &inferencev1.TokenLogprobs{Top: make([]*inferencev1.TokenLogprob, n)})
		}
		return all
	}
	for _, test := range []struct {
		name  string
		asked bool
		sent  []*inferencev1.TokenLogprobs
		says  string // empty: both tokens are delivered
	}{
		{"as asked", true, of(2, 0), ""},
		{"none, none asked", false, nil, ""},
		{"none", true, nil, "log probabilities of 0 tokens instead of 2"},
		{"too few", true, of(1), "of 1 tokens instead of 2"},
		{"not asked", false, of(0, 0), "of 2 tokens instead of 0"},
		{"too many of the likeliest", true, of(2, 3), "3 of the likeliest"},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			j := joining.New(joining.Params{
				Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 9, Text: &words{}, MaxAttempts: 1, Linger: time.Second,
				Logprobs: test.asked, TopLogprobs: 2,
			})
			j.Handle(now, joining.Start{})
			j.Handle(now, joining.Dispatched{Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d"}}})
			actions := j.Handle(now, joining.DecodeMessage{Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{
				Tokens: &workerv1.Tokens{TokenIds: []uint32{1, 2}, Logprobs: test.sent},
			}}})
			delivered, failure := 0, error(nil)
			for _, action := range actions {
				switch a := action.(type) {
				case *joining.Deliver:
					delivered++
				case joining.Release:
					failure = a.Err
				}
			}
			if test.says == "" {
				if delivered != 2 || failure != nil {
					t.Errorf("%d delivered, error %v", delivered, failure)
				}
			} else if delivered != 0 || status.Code(failure) != codes.Internal || !strings.Contains(failure.Error(), test.says) {
				t.Errorf("%d delivered, error %v, want %q", delivered, failure, test.says)
			}
		})
	}
}
