package decode_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// Each token comes with its log probabilities, if the task asks for them.
func TestLogprobs(t *testing.T) {
	for _, here := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			tokens := prompt(20, 3)
			asks := task(tokens, 9)
			asks.Logprobs = proto.Uint32(2)
			answer := func(task *workerv1.Task) *answer {
				request := &workerv1.DecodeRequest{Task: task, PrefillHere: here}
				if here {
					return g.call(t.Context(), request).rest()
				}
				return g.generate(request)
			}
			first := 1
			if here {
				first = 0
			}
			a := answer(asks)
			a.checkTokens("asked", tokens, first, 9, length)
			if len(a.logprobs) != len(a.tokens) {
				t.Fatalf("log probabilities of %d tokens, there are %d", len(a.logprobs), len(a.tokens))
			}
			for i, l := range a.logprobs {
				// The simulated engine gives the token that it draws the first place.
				if len(l.GetTop()) != 2 || l.GetTop()[0].GetTokenId() != a.tokens[i] || l.GetTop()[0].GetLogprob() != l.GetLogprob() || l.GetLogprob() >= 0 {
					t.Errorf("token %d has %v", a.tokens[i], l)
				}
			}
			b := answer(task(tokens, 9))
			b.checkTokens("not asked", tokens, first, 9, length)
			if len(b.logprobs) != 0 {
				t.Errorf("nobody asked for %v", b.logprobs)
			}
			g.idle()
		})
	}
}
