package routing_test

import (
	"fmt"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// expecting is a bench of large prefill and decode workers that have measured their steps and
// hold nothing.
func expecting(t *testing.T, prefills, decodes int) *bench {
	var records []*controlv1.WorkerRecord
	for i := range prefills {
		records = append(records, prefill(fmt.Sprint("p", i+1)))
	}
	for i := range decodes {
		records = append(records, decode(fmt.Sprint("d", i+1)))
	}
	for _, r := range records {
		r.Capacity = &controlv1.Capacity{Blocks: 4096, BlockTokens: 32, MaxBatchTokens: 512, MaxSequences: 64, MaxWaiting: 64}
	}
	b := newBench(t, func(c *routing.Config) { c.QueueLimit = 100 }, records...)
	for _, r := range records {
		b.do(load(r.GetId(), r.GetRole(), func(l *controlv1.LoadReport) { l.BlocksFree = 4096 }))
		b.holds(r.GetId())
	}
	return b
}

// send hands in a prompt of so many blocks and a token, of which the first are those of all.
func (b *bench) send(mode inferencev1.Mode, shared, blocks int) (routing.Request, routing.Dispatch, bool) {
	r := b.request(mode, blocks*32+1)
	hashes := make([]kvcache.Hash, blocks)
	for i := range hashes {
		hashes[i] = kvcache.Hash(i + 1)
		if i >= shared {
			hashes[i] = kvcache.Hash(1000*b.count + i)
		}
	}
	r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return hashes })
	d, _, sent := b.arrive(r)
	return r, d, sent
}

// The next prompt that begins alike goes to the worker that computes the first, or waits for it.
func TestTheNextEqualPromptGoesTheSameWay(t *testing.T) {
	b := expecting(t, 4, 1)
	_, first, _ := b.send(dis, 16, 16)
	for range 8 {
		r, d, sent := b.send(dis, 16, 16)
		if sent && d.Prefill != first.Prefill {
			t.Errorf("%s goes to %s and not to %s: %s", r.ID, d.Prefill.ID, first.Prefill.ID, d.Decision.GetReason())
		}
	}
	if _, other, sent := b.send(dis, 0, 16); !sent || other.Prefill == first.Prefill {
		t.Errorf("another prompt goes to %s, %v", other.Prefill.ID, sent)
	}
}

// Its first token is not predicted before that of the first: nothing of it is there yet.
func TestWhatIsExpectedIsNotThereYet(t *testing.T) {
	b := expecting(t, 1, 1)
	_, first, _ := b.send(dis, 8, 8)
	_, next, sent := b.send(dis, 8, 8)
	if !sent || next.Decision.GetTtftMs() < first.Decision.GetTtftMs() || next.Decision.GetTtftMs() > first.Decision.GetTtftMs()*1.2 {
		t.Errorf("predicted after %.1f ms, the first after %.1f ms, sent %v", next.Decision.GetTtftMs(), first.Decision.GetTtftMs(), sent)
	}
	if c := next.Decision.GetCandidates(); c[len(c)-1].GetCachedTokens() != 0 {
		t.Errorf("%v", c)
	}
}

// What is expected is believed until it has failed, or should have been confirmed.
func TestExpectationsEnd(t *testing.T) {
	for name, test := range map[string]struct {
		then func(*bench, routing.Request, string)
		want bool // that the next goes there
	}{
		"nothing happens": {func(*bench, routing.Request, string) {}, true},
		"it fails":        {func(b *bench, r routing.Request, _ string) { b.do(routing.Ended{ID: r.ID}) }, false},
		"it is computed":  {func(b *bench, r routing.Request, _ string) { b.do(routing.PromptDone{ID: r.ID}) }, true},
		"it is computed, ends": {func(b *bench, r routing.Request, _ string) {
			b.do(routing.PromptDone{ID: r.ID})
			b.do(routing.Ended{ID: r.ID, Served: true})
		}, true},
		"no event confirms it": {func(b *bench, r routing.Request, id string) {
			b.do(routing.PromptDone{ID: r.ID})
			b.do(routing.Ended{ID: r.ID, Served: true})
			b.now = b.now.Add(1100 * time.Millisecond)
		}, false},
		"an event confirms it": {func(b *bench, r routing.Request, id string) {
			b.do(routing.PromptDone{ID: r.ID})
			b.do(kvEvent(id, 1, sequence(16)...))
			b.do(routing.Ended{ID: r.ID, Served: true})
			b.now = b.now.Add(1100 * time.Millisecond)
		}, true},
		"an event takes it back": {func(b *bench, r routing.Request, id string) {
			b.do(routing.PromptDone{ID: r.ID})
			b.do(kvEvent(id, 1, sequence(16)...))
			b.do(routing.Ended{ID: r.ID, Served: true})
			b.do(routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: id, Epoch: 1, Sequence: 2}, Removed: sequence(16)}})
		}, false},
		"no events come at all": {func(b *bench, r routing.Request, id string) {
			b.now = b.now.Add(10 * time.Second)
			b.do(routing.PromptDone{ID: r.ID})
			b.do(routing.Ended{ID: r.ID, Served: true})
			b.now = b.now.Add(10 * time.Second)
		}, true},
		"none come for long": {func(b *bench, r routing.Request, id string) {
			b.now = b.now.Add(10 * time.Second)
			b.do(routing.PromptDone{ID: r.ID})
			b.do(routing.Ended{ID: r.ID, Served: true})
			b.now = b.now.Add(40 * time.Second)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			there, all := 0, 20
			for range all {
				b := expecting(t, 8, 1)
				r, first, _ := b.send(dis, 16, 16)
				test.then(b, r, first.Prefill.ID)
				// The next one is longer, so that it is sent at once where it gains nothing.
				if _, d, sent := b.send(dis, 16, 17); !sent || d.Prefill == first.Prefill {
					there++
				}
			}
			if test.want && there < all || !test.want && there == all {
				t.Errorf("%d of %d go there", there, all)
			}
		})
	}
}
