package scheduler_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// arriveNear is arrive of KV that is said to be approximate, with one token.
func (w *world) arriveNear(l *life) {
	l.arrived, l.computed = true, len(l.request.Tokens)
	l.output = w.expected(l)[:1]
	kv, _ := alone(l.request.Tokens, 0, 0, 0, nil)
	for i := l.cached; i < len(kv); i++ {
		*w.pages.at(l.table, i) = kv[i]
	}
	w.handle(scheduler.KVArrived{ID: l.request.ID, Sampled: l.output, Approximate: true})
}

// TestApproximateKVIsNotShared: neither what came nor what was computed from it is
// found by another sequence, whatever the end; what was shared before stays so.
func TestApproximateKVIsNotShared(t *testing.T) {
	const tokens, generated = 14, 12 // blocks of 4: three of the prompt, six in all
	for _, test := range []struct {
		name   string
		exact  bool // the KV is what the worker would have computed
		shared int  // tokens that are in the cache before
		end    func(w *world, l *life)
		cached int // what a sequence that goes on from it finds
	}{
		{"exact", true, 0, func(w *world, _ *life) { w.finishAll() }, 24},
		{"complete", false, 0, func(w *world, _ *life) { w.finishAll() }, 0},
		{"complete, behind a shared prefix", false, 8, func(w *world, _ *life) { w.finishAll() }, 8},
		{"cancelled before it ran", false, 0, func(w *world, l *life) { w.handle(scheduler.Cancel{ID: l.request.ID}) }, 0},
		{"cancelled while it runs", false, 4, func(w *world, l *life) {
			for range 6 {
				w.finishStep(0)
			}
			w.handle(scheduler.Cancel{ID: l.request.ID})
		}, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 30, standard)
			if test.shared > 0 {
				w.submit(scheduler.Request{ID: 1, Tokens: prompt(test.shared), MaxTokens: 1})
				w.finishAll()
			}
			before := len(w.cache)
			l := w.submit(scheduler.Request{ID: 2, Kind: scheduler.Receive, Tokens: prompt(tokens), MaxTokens: generated, Stop: never})
			if test.exact {
				w.arrive(l, 1)
			} else {
				w.arriveNear(l)
			}
			test.end(w, l)
			w.finishAll()
			if !test.exact && len(w.cache) != before {
				t.Errorf("%d blocks are shared, %d were before it", len(w.cache), before)
			}
			after := w.submit(scheduler.Request{ID: 3, Tokens: append(prompt(tokens), w.expected(l)...), MaxTokens: 1})
			w.finishAll()
			if after.cached != test.cached {
				t.Errorf("the next one finds %d tokens, want %d", after.cached, test.cached)
			}
		})
	}
}
