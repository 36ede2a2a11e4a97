package serving

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// Prompt is one that several requests have. The first computes it. The others wait until a worker
// has its KV, and are drawn to that worker: it shares the whole blocks with them, so that nothing
// of these is computed or sent again. They are requests like others in all else, and whatever
// becomes of them, their tokens are the same.
type Prompt struct {
	once   sync.Once
	done   chan struct{} // closed when the prompt is computed
	holder routing.Ref   // the worker that has its KV, once done is closed; zero: none that is known
}

// NewPrompt returns a prompt that is not computed yet.
func NewPrompt() *Prompt { return &Prompt{done: make(chan struct{})} }

// Sharing is what a request shares with others; the zero one: nothing.
type Sharing struct {
	// Prompt is that of several requests, of which this is the First or is to wait for it.
	Prompt *Prompt
	First  bool
}

// waits says that another request computes the prompt.
func (s Sharing) waits() bool { return s.Prompt != nil && !s.First }

// computed lets those go that wait for the request. Only its first call counts.
func (s Sharing) computed(by routing.Ref) {
	if p := s.Prompt; p != nil && s.First {
		p.once.Do(func() {
			p.holder = by
			close(p.done)
		})
	}
}

// promptTokens is how many tokens of the prompt count against limits: a prompt that requests share
// counts once.
func (s Sharing) promptTokens(p *preprocess.Plan) int {
	if s.waits() {
		return 0
	}
	return len(p.Tokens)
}

// promptWaits is how many requests of each tenant wait for another one with the same prompt. The routing
// core does not know them yet. A tenant may have as many of them as it may have requests there.
type promptWaits map[string]int

// enter counts one in, unless its tenant has so many.
func (w promptWaits) enter(tenant string, most int) error {
	if w[tenant] >= most {
		return rpc.Error(codes.ResourceExhausted, api.ReasonTenantLimit, fmt.Sprintf("%d answers of tenant %q already wait for the prompt of another, its limit; retry when one has ended", most, tenant), time.Second)
	}
	w[tenant]++
	return nil
}

func (w promptWaits) leave(tenant string) {
	if w[tenant]--; w[tenant] == 0 {
		delete(w, tenant)
	}
}

// findable are the tokens of an attempt that it may find in prefix caches: none where the prompt has to be
// computed to be scored.
func (r *request) findable(tokens []int32) []int32 {
	if r.plan.PromptLogprobs != nil && len(tokens) == len(r.plan.Tokens) {
		return nil
	}
	return tokens
}

// waitsForPrompt reports whether a request waits for another one with the same prompt. Where that has no whole
// block before its last token there is nothing to wait for.
func (s *Requests) waitsForPrompt(sharing Sharing, p *preprocess.Plan) bool {
	return sharing.waits() && len(p.Tokens) > s.deps.Dispatcher.BlockTokens(p.Model.Spec.Name)
}

// mayStart is closed when the request may ask for workers: at once, unless it waits for another one.
func (r *request) mayStart() <-chan struct{} {
	if !r.waitsForPrompt {
		start := make(chan struct{})
		close(start)
		return start
	}
	return r.sharing.Prompt.done
}

// takePrompt takes in which worker has the prompt, if another request computed it. The objective counts
// from here: the wait was for the other request, which had its own.
func (r *request) takePrompt() {
	r.endPromptWait()
	if !r.sharing.waits() {
		return
	}
	select {
	case <-r.sharing.Prompt.done:
		r.arrived, r.holder = time.Now(), r.sharing.Prompt.holder
	default:
	}
}

// endPromptWait is called when the request no longer waits for another's prompt.
func (r *request) endPromptWait() {
	if !r.waitsForPrompt {
		return
	}
	r.waitsForPrompt = false
	r.requests.mu.Lock()
	defer r.requests.mu.Unlock()
	r.requests.promptWaits.leave(r.tenant)
}

// passPrompt lets those go that wait for the request's prompt, once a worker has it. The loop's lock is
// held.
func (r *request) passPrompt() {
	if !r.awaited.Load() {
		return
	}
	if by, known := r.loop.Core.Holder(); known {
		r.awaited.Store(false)
		r.sharing.computed(by)
	}
}
