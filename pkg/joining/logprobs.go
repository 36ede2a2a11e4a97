package joining

import (
	"fmt"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
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

// scores reports whether the present attempt has to say how likely the prompt's tokens are: one that goes
// on with tokens comes after one that did.
func (j *Join) scores() bool { return j.p.PromptLogprobs && j.attempt.base == 0 }

// promptLogprobs takes what decode says of the prompt. What another attempt said before is not said
// again: it is the same.
func (j *Join) promptLogprobs(now time.Time, e *workerv1.PromptLogprobs) {
	t := &j.attempt
	n := len(e.GetLogprobs())
	problem := ""
	switch {
	case !j.scores() || t.first:
		problem = "sent log probabilities of a prompt that nobody asked for"
	case int(e.GetOffset()) != t.scored+1 || n == 0 || t.scored+n > j.p.PromptTokens-1:
		problem = fmt.Sprintf("sent log probabilities of %d tokens of the prompt from %d on, after %d of %d", n, e.GetOffset(), t.scored, j.p.PromptTokens-1)
	}
	for _, l := range e.GetLogprobs() {
		if len(l.GetTop()) > j.p.TopPromptLogprobs {
			problem = fmt.Sprintf("sent %d of the likeliest tokens, more than the %d asked for", len(l.GetTop()), j.p.TopPromptLogprobs)
		}
	}
	if problem != "" {
		j.broken(now, Decode, problem)
		return
	}
	j.accept()
	t.catchesUp, t.paused = false, false
	t.scored += n
	if more := t.scored - j.scored; more > 0 {
		j.do(DeliverPrompt{Offset: j.scored + 1, Logprobs: e.GetLogprobs()[n-more:]})
		j.scored = t.scored
	}
}
