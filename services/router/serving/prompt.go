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

// follows says that another request computes the prompt.
func (s Sharing) follows() bool { return s.Prompt != nil && !s.First }

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
	if s.follows() {
		return 0
	}
	return len(p.Tokens)
}

// followers are how many requests of each tenant wait for another one with the same prompt. The routing
// core does not know them yet. A tenant may have as many of them as it may have requests there.
type followers map[string]int

// enter counts one in, unless its tenant has so many.
func (f followers) enter(tenant string, most int) error {
	if f[tenant] >= most {
		return rpc.Error(codes.ResourceExhausted, api.ReasonTenantLimit, fmt.Sprintf("%d answers of tenant %q already wait for the prompt of another, its limit; retry when one has ended", most, tenant), time.Second)
	}
	f[tenant]++
	return nil
}

func (f followers) leave(tenant string) {
	if f[tenant]--; f[tenant] == 0 {
		delete(f, tenant)
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

// waits reports whether a request waits for another one with the same prompt. Where that has no whole
// block before its last token there is nothing to wait for.
func (s *Requests) waits(sharing Sharing, p *preprocess.Plan) bool {
	return sharing.follows() && len(p.Tokens) > s.deps.Dispatcher.BlockTokens(p.Model.Spec.Name)
}

// turn is closed when the request may ask for workers: at once, unless it waits for another one.
func (r *request) turn() <-chan struct{} {
	if !r.waits {
		turn := make(chan struct{})
		close(turn)
		return turn
	}
	return r.sharing.Prompt.done
}

// begins takes in that it is the request's turn. Its objective counts from here: the wait was for the
// first request of the prompt, which had its own.
func (r *request) begins() {
	r.waited()
	if !r.sharing.follows() {
		return
	}
	select {
	case <-r.sharing.Prompt.done:
		r.arrived, r.holder = time.Now(), r.sharing.Prompt.holder
	default:
	}
}

// waited is called when the request no longer waits for another's prompt.
func (r *request) waited() {
	if !r.waits {
		return
	}
	r.waits = false
	r.requests.mu.Lock()
	defer r.requests.mu.Unlock()
	r.requests.followers.leave(r.tenant)
}

// lead lets those go that wait for the request's prompt, once a worker has it. The loop's lock is
// held.
func (r *request) lead() {
	if !r.leads.Load() {
		return
	}
	if by, known := r.loop.Core.Holder(); known {
		r.leads.Store(false)
		r.sharing.computed(by)
	}
}
