package worker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// A worker leaves when its own computing fails two prompts within ten minutes. What a client can
// make of one prompt that overflows is one.
func TestPromptsThatFail(t *testing.T) {
	type failure struct {
		prompt          []int32
		layer, position int
		after           time.Duration // the one before
		origin          string
	}
	for name, c := range map[string]struct {
		failures []failure
		leaves   bool
	}{
		"one prompt":                         {[]failure{{prompt: []int32{1, 2}, layer: -1}}, false},
		"one prompt twice":                   {[]failure{{prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 2}, layer: -1}}, false},
		"two prompts":                        {[]failure{{prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 3}, layer: -1}}, true},
		"two prompts ten minutes apart":      {[]failure{{prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 3}, layer: -1, after: 10 * time.Minute}}, false},
		"two prompts with KV of others":      {[]failure{{prompt: []int32{1, 2}, origin: "prefill"}, {prompt: []int32{1, 3}, origin: "prefill"}}, false},
		"the next turn of a conversation":    {[]failure{{prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 2, 3}, layer: -1}}, false},
		"two ends of what began":             {[]failure{{prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 2, 3}, layer: -1}, {prompt: []int32{1, 2, 0}, layer: -1}}, false},
		"a shorter one, then another":        {[]failure{{prompt: []int32{1, 2, 3}, layer: -1}, {prompt: []int32{1, 2}, layer: -1}, {prompt: []int32{1, 2, 0}, layer: -1}}, false},
		"the same origin, and what follows":  {[]failure{{prompt: []int32{1, 2, 3}, position: 1}, {prompt: []int32{1, 2, 0}, position: 1}}, false},
		"other tokens before the origin":     {[]failure{{prompt: []int32{1, 2, 3}, position: 1}, {prompt: []int32{0, 2, 3}, position: 1}}, true},
		"another token at the origin":        {[]failure{{prompt: []int32{1, 2, 3}, position: 1}, {prompt: []int32{1, 3, 3}, position: 1}}, true},
		"an origin behind the prompt":        {[]failure{{prompt: []int32{1, 2}, position: 5}, {prompt: []int32{1, 2}, position: 4}}, false},
		"another origin further on":          {[]failure{{prompt: []int32{1, 2, 3}, position: 1}, {prompt: []int32{1, 2, 0, 4}, position: 3}}, true},
		"everything from the first token on": {[]failure{{prompt: []int32{1, 2}, position: 0}, {prompt: []int32{1, 3}, position: 0}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, now, leaves := newWorker(t, 10), time.Unix(1000, 0), false
			for i, f := range c.failures {
				now = now.Add(f.after)
				id := scheduler.SequenceID(i + 1)
				w.Handle(now, worker.Generate{Request: scheduler.Request{ID: id, Tokens: f.prompt, MaxTokens: 3}})
				w.Handle(now, step(sampler.None))
				leaves = slices.Contains(w.Handle(now, worker.Inspected{ID: id, Err: &worker.NotFiniteError{
					NotFiniteError: &engine.NotFiniteError{Layer: f.layer, Position: f.position}, Origin: f.origin,
				}}), worker.Action(worker.Fault{}))
				if leaves && i < len(c.failures)-1 {
					t.Fatalf("leaves after %d failures", i+1)
				}
			}
			if leaves != c.leaves {
				t.Errorf("leaves: %v, want %v", leaves, c.leaves)
			}
		})
	}
}
