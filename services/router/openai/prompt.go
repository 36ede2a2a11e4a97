package openai

import (
	"sync"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// Prompt is one that several answers have: the backend computes it for the first, and the others
// share that. It is safe for concurrent use.
type Prompt struct {
	done   chan struct{}
	once   sync.Once
	holder routing.Ref
}

// newPrompt is a prompt that was not computed yet.
func newPrompt() *Prompt { return &Prompt{done: make(chan struct{})} }

// Computed says which worker has the prompt's KV; the zero Ref: none that is known. Only the first
// call counts.
func (p *Prompt) Computed(by routing.Ref) {
	p.once.Do(func() {
		p.holder = by
		close(p.done)
	})
}

// Done is closed by Computed.
func (p *Prompt) Done() <-chan struct{} { return p.done }

// Holder is what Computed said. It is for whom Done was closed.
func (p *Prompt) Holder() routing.Ref { return p.holder }
