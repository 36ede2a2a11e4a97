package joining

import (
	"fmt"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// drawn is a token as a worker sent it.
type drawn struct {
	token    int32
	logprobs *inferencev1.TokenLogprobs // nil: nobody asked
}

// sent is its log probabilities as a list, of one at most.
func (d drawn) sent() []*inferencev1.TokenLogprobs {
	if d.logprobs == nil {
		return nil
	}
	return []*inferencev1.TokenLogprobs{d.logprobs}
}

// badLogprobs says what is wrong with what a worker said of the likelihood of so
// many tokens; it is empty if nothing is.
func (p *Params) badLogprobs(tokens int, sent []*inferencev1.TokenLogprobs) string {
	want := 0
	if p.Logprobs {
		want = tokens
	}
	if len(sent) != want {
		return fmt.Sprintf("sent log probabilities of %d tokens instead of %d", len(sent), want)
	}
	for _, l := range sent {
		if n := len(l.GetTop()); n > p.TopLogprobs {
			return fmt.Sprintf("sent %d of the likeliest tokens, more than the %d asked for", n, p.TopLogprobs)
		}
	}
	return ""
}
