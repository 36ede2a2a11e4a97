package prefill_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// The first token comes with its log probabilities, if the task asks for them.
func TestLogprobsOfTheFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		tokens := prompt(20, 3)
		for _, wanted := range []*uint32{nil, proto.Uint32(0), proto.Uint32(3)} {
			r := p.reserve(len(tokens), 0)
			asks := task(tokens, 5)
			asks.Logprobs = wanted
			a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: asks, Ticket: r.ticket})
			if a.err != nil || a.first.GetTokenId() != firstToken(t, tokens) {
				t.Fatalf("first token %v, error %v", a.first, a.err)
			}
			l := a.first.GetLogprobs()
			switch {
			case (l != nil) != (wanted != nil):
				t.Errorf("log probabilities %v", l)
			case wanted == nil:
			case l.GetLogprob() >= 0 || len(l.GetTop()) != int(*wanted) || *wanted > 0 && l.GetTop()[0].GetTokenId() != a.first.GetTokenId():
				t.Errorf("asked for %d: %v", *wanted, l)
			}
			r.end(t)
			g.idle()
		}
	})
}
