package simulate

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// What breaks an invariant is seen, and what does not is not.
func TestInvariants(t *testing.T) {
	blocks := func(ids ...kvcache.BlockID) []kvcache.BlockID { return ids }
	step := func(sequences ...engine.Sequence) *scheduler.RunStep {
		return &scheduler.RunStep{Batch: engine.Batch{Sequences: sequences}}
	}
	tokens := func(n int) []int32 { return make([]int32, n) }
	for _, c := range []struct {
		name, want string
		do         func(w *watch, p *process)
	}{
		{"a chunk into reserved blocks", "", func(w *watch, p *process) { w.reserved(p, 1, blocks(3, 4)); w.wrote(p, 1, blocks(4)) }},
		{"a chunk into another block", "transfers write only what is reserved for them", func(w *watch, p *process) { w.reserved(p, 1, blocks(3, 4)); w.wrote(p, 1, blocks(5)) }},
		{"a chunk after the end", "transfers write only what is reserved for them", func(w *watch, p *process) {
			w.reserved(p, 1, blocks(3))
			w.closed(p, 1)
			w.wrote(p, 1, blocks(3))
		}},
		{"a block reserved twice", "a block has one writer", func(w *watch, p *process) { w.reserved(p, 1, blocks(3)); w.reserved(p, 2, blocks(2, 3)) }},
		{"a block reserved again", "", func(w *watch, p *process) { w.reserved(p, 1, blocks(3)); w.closed(p, 1); w.reserved(p, 2, blocks(3)) }},
		{"a step that shares a prefix", "", func(w *watch, p *process) {
			w.stepping(p, step(engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1, 2)}, engine.Sequence{Start: 4, Tokens: tokens(3), Blocks: blocks(1, 3)}))
		}},
		{"a step that writes a shared block", "a block has one writer", func(w *watch, p *process) {
			w.stepping(p, step(engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1, 2)}, engine.Sequence{Start: 0, Tokens: tokens(3), Blocks: blocks(1)}))
		}},
		{"a step of two writers", "a block has one writer", func(w *watch, p *process) {
			w.stepping(p, step(engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1, 2)}, engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1, 2)}))
		}},
		{"a step without its blocks", "a step has its blocks", func(w *watch, p *process) {
			w.stepping(p, step(engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1)}))
		}},
		{"a step that reads what a transfer writes", "a step uses no block that a transfer may write", func(w *watch, p *process) {
			w.reserved(p, 1, blocks(1))
			w.stepping(p, step(engine.Sequence{Start: 4, Tokens: tokens(1), Blocks: blocks(1, 2)}))
		}},
		{"a token too many", "answers have the length asked for", func(w *watch, _ *process) {
			w.delivered(&request{from: &workload.Request{MaxTokens: 2}, answered: 2})
		}},
		{"a token after the end", "a request ends once", func(w *watch, _ *process) { w.delivered(&request{ended: true}) }},
		{"a second end", "a request ends once", func(w *watch, _ *process) { w.finished(&request{ended: true}, nil) }},
		{"an end too soon", "answers have the length asked for", func(w *watch, _ *process) {
			w.finished(&request{from: &workload.Request{MaxTokens: 2}, answered: 1}, nil)
		}},
		{"a request over its deadline", "deadlines are kept", func(w *watch, _ *process) {
			w.began(&request{deadline: w.cluster.now.Add(-2 * time.Second)})
			w.sampled()
		}},
		{"a loop without end", "time passes", func(w *watch, _ *process) {
			for range spin + 1 {
				w.happened()
			}
		}},
		{"many events in some time", "", func(w *watch, _ *process) {
			for range spin + 1 {
				w.cluster.now = w.cluster.now.Add(1)
				w.happened()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := &Cluster{clock: clock{now: epoch}}
			w := newWatch(cluster)
			c.do(w, &process{ref: routing.Ref{ID: "d-1"}, layout: kvcache.Layout{BlockTokens: 4}})
			got := ""
			if w.found != nil {
				got = w.found.Invariant
			}
			if got != c.want {
				t.Errorf("%v, want %q", w.found, c.want)
			}
		})
	}
}
