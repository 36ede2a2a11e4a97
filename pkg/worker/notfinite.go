package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// NotFiniteError is why a sequence failed whose logits were not finite.
type NotFiniteError struct {
	// NotFiniteError says where that began, as far as it was found out.
	*engine.NotFiniteError
	// Origin is the worker or store that sent the KV which is not finite; "" if it was
	// computed here, or if all of it is finite.
	Origin string
}

// Error says whose fault it is.
func (e *NotFiniteError) Error() string {
	if e.Origin != "" {
		return fmt.Sprintf("the KV that came from %s is not finite: %v", e.Origin, e.NotFiniteError)
	}
	return e.NotFiniteError.Error()
}

// Unwrap gives the engine's error.
func (e *NotFiniteError) Unwrap() error { return e.NotFiniteError }

// ErrNotFinite is what a worker leaves with whose own arithmetic gives what is not finite.
var ErrNotFinite = errors.New("the engine's logits were not finite for several prompts: its device or the weights in memory are at fault; restart the worker, and if this happens again check the model's files")

// A worker leaves when ownFailures prompts within ownWindow had logits that were not
// finite, by its own computing. One prompt counts once, however often it is tried and whatever
// follows it: some model may have no finite answer to it.
const (
	ownFailures = 2
	ownWindow   = 10 * time.Minute
)

// ownFault remembers the prompts that a worker's own computing failed. The zero value
// remembers none.
type ownFault struct {
	failed []failedPrompt // within ownWindow, oldest first; none is like another
}

type failedPrompt struct {
	tokens []int32
	origin bool // the last token is where it began
	at     time.Time
}

// like reports whether two prompts failed for one reason, as far as their tokens tell: up to the
// same origin they are equal, or where that of one is not known, one begins with the other.
func (p failedPrompt) like(other failedPrompt) bool {
	common := min(len(p.tokens), len(other.tokens))
	if p.origin && other.origin && len(p.tokens) != len(other.tokens) {
		return false
	}
	return slices.Equal(p.tokens[:common], other.tokens[:common])
}

// add takes in a failure, and says whether that is one too many.
func (f *ownFault) add(now time.Time, prompt []int32, where *engine.NotFiniteError) bool {
	// What follows the origin has no part in it. At the first position nothing came before it
	// but what all prompts have in common: then the machine is to blame, or the model is of no
	// use at all.
	this := failedPrompt{prompt, where.Layer >= 0 && where.Position > 0, now}
	if this.origin {
		this.tokens = prompt[:min(where.Position+1, len(prompt))]
	}
	kept := f.failed[:0]
	for _, other := range f.failed {
		switch {
		case now.Sub(other.at) >= ownWindow:
		case !this.like(other):
			kept = append(kept, other)
		case len(other.tokens) < len(this.tokens):
			this.tokens, this.origin = other.tokens, other.origin
		}
	}
	this.tokens = slices.Clone(this.tokens)
	kept = append(kept, this)
	f.failed = kept
	return len(f.failed) >= ownFailures
}
