package routing_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// documents is a bench of one decode worker with room for one long prompt and a few blocks.
func documents(t *testing.T) *bench {
	d1 := decode("d1")
	d1.Capacity = &controlv1.Capacity{Blocks: 60, BlockTokens: 32, MaxBatchTokens: 512, MaxSequences: 64, MaxWaiting: 64}
	b := newBench(t, func(c *routing.Config) { c.QueueLimit = 100 }, d1)
	b.free(60)
	return b
}

// free has a report say how many blocks are free, with all that was sent.
func (b *bench) free(blocks uint32) {
	b.now = b.now.Add(config().ReportLag)
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = blocks }))
}

// asks hands in a question of own blocks on a document of shared ones.
func (b *bench) asks(holder routing.Ref, shared, own int) (routing.Request, bool) {
	r := b.request(agg, (shared+own)*32+1)
	hashes := make([]kvcache.Hash, shared+own)
	for i := range hashes {
		if hashes[i] = kvcache.Hash(i + 1); i >= shared {
			hashes[i] = kvcache.Hash(1000*b.count + i)
		}
	}
	r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return hashes })
	r.Holder = holder
	d, _, _ := b.arrive(r)
	return r, d.Decode.ID == "d1"
}

func (b *bench) takes(r routing.Request) {
	b.do(routing.Taken{ID: r.ID, Role: controlv1.Role_ROLE_DECODE})
}

// Blocks that a worker holds for a request that runs there are not needed again by the next one.
func TestHeldBlocksAreNeededOnce(t *testing.T) {
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	for name, test := range map[string]struct {
		holder routing.Ref
		listed bool
		own    int
	}{
		"answers to one prompt":      {holder: d1},
		"questions on one document":  {listed: true, own: 2},
		"answers that are not known": {listed: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := documents(t)
			first, sent := b.asks(routing.Ref{}, 40, test.own)
			if !sent {
				t.Fatal("the first is not sent")
			}
			b.takes(first)
			b.free(60 - 42 - uint32(test.own))
			if test.listed {
				b.holds("d1", sequence(40)...)
			}
			for i := range 3 { // each adds a few blocks, also before a report counts it
				if _, sent := b.asks(test.holder, 40, test.own); !sent {
					t.Errorf("request %d waits for blocks that are there", i+2)
				}
			}
		})
	}
}

// What is cached counts as free already, so it is no less needed where nobody holds it.
func TestCachedBlocksAreNeeded(t *testing.T) {
	for name, before := range map[string]func(b *bench){
		"nobody has run there": func(*bench) {},
		"who ran there has ended": func(b *bench) {
			first, _ := b.asks(routing.Ref{}, 40, 0)
			b.takes(first)
			b.do(routing.Ended{ID: first.ID, Served: true, Tokens: 1})
		},
		"who is there has no blocks yet": func(b *bench) {
			b.asks(routing.Ref{}, 40, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := documents(t)
			b.holds("d1", sequence(40)...)
			before(b)
			b.free(20)
			if _, sent := b.asks(routing.Ref{ID: "d1", Epoch: 1}, 40, 0); sent {
				t.Error("42 blocks are needed and 20 are free, and it is sent")
			}
		})
	}
}

// A request that waits for free blocks goes soon after it may share those of another one.
func TestWaitsForBlocksToShare(t *testing.T) {
	cached := func(b *bench) { b.holds("d1", sequence(40)...) }
	takes := func(b *bench, first routing.Request) { b.takes(first) }
	for name, c := range map[string]struct {
		before func(*bench)
		steps  []func(*bench, routing.Request)
		atOnce bool // it is sent with the last step
	}{
		"the other begins": {cached, []func(*bench, routing.Request){takes}, true},
		"a snapshot says that its blocks are cached": {func(*bench) {}, []func(*bench, routing.Request){
			takes, func(b *bench, r routing.Request) { b.do(routing.PromptDone{ID: r.ID}) }, func(b *bench, _ routing.Request) { cached(b) },
		}, false},
		"an event says that its blocks are cached": {func(b *bench) { b.holds("d1") }, []func(*bench, routing.Request){
			takes, func(b *bench, r routing.Request) { b.do(routing.PromptDone{ID: r.ID}) }, func(b *bench, _ routing.Request) {
				b.do(routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: "d1", Epoch: 1, Sequence: 1}, Stored: sequence(40)}})
			},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := documents(t)
			c.before(b)
			first, _ := b.asks(routing.Ref{}, 40, 0)
			second, sent := b.asks(routing.Ref{}, 40, 0)
			look := func() {
				d, _, _ := answerTo(second.ID, b.last)
				sent = sent || d.Decode.ID == "d1"
			}
			pass := func() {
				b.now = b.now.Add(30 * time.Millisecond)
				b.do(routing.Tick{})
				look()
			}
			for _, step := range c.steps {
				if pass(); sent {
					t.Fatal("it is sent too soon")
				}
				step(b, first)
				look()
			}
			if c.atOnce && !sent {
				t.Error("it is not sent at once")
			}
			if pass(); !sent {
				t.Error("it still waits")
			}
		})
	}
}

// However requests begin and end, they are charged with at least the blocks that they hold together,
// and at most with what each would need alone; in the end with none.
func TestSharedBlocksAreCharged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d1 := decode("d1")
		d1.Capacity = &controlv1.Capacity{Blocks: 100000, BlockTokens: 32, MaxBatchTokens: 512, MaxSequences: 64, MaxWaiting: 64}
		b := newBench(t, nil, d1)
		b.free(100000)
		type prompt struct {
			id     string
			hashes []kvcache.Hash
		}
		var running []prompt
		check := func() {
			held, alone := map[kvcache.Hash]bool{}, 0
			for _, p := range running {
				for _, h := range p.hashes {
					held[h] = true
				}
				alone += len(p.hashes) + 1
			}
			charged := b.f.Charged(routing.Ref{ID: "d1", Epoch: 1})
			if charged < len(held)+len(running) || charged > alone {
				rt.Fatalf("charged with %d blocks; together they hold %d, alone %d", charged, len(held)+len(running), alone)
			}
		}
		end := func(i int) {
			b.do(routing.Ended{ID: running[i].id, Served: true, Tokens: 1})
			running = slices.Delete(running, i, i+1)
			check()
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			if len(running) == 20 || len(running) > 0 && rapid.IntRange(0, 2).Draw(rt, "end") == 0 {
				end(rapid.IntRange(0, len(running)-1).Draw(rt, "which"))
				continue
			}
			// A prompt is a path in a tree.
			p := prompt{}
			last := kvcache.Hash(1)
			for range rapid.IntRange(1, 6).Draw(rt, "blocks") {
				last = last*3 + kvcache.Hash(rapid.IntRange(0, 1).Draw(rt, "branch"))
				p.hashes = append(p.hashes, last)
			}
			r := b.request(agg, len(p.hashes)*32+1)
			r.MaxNew = 1
			r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return p.hashes })
			r.Holder = routing.Ref{ID: "d1", Epoch: 1}
			if _, _, sent := b.arrive(r); !sent {
				rt.Fatalf("%s is not sent", r.ID)
			}
			p.id = r.ID
			running = append(running, p)
			if rapid.IntRange(0, 3).Draw(rt, "taken") > 0 {
				b.takes(r)
			}
			check()
		}
		for len(running) > 0 {
			end(0)
		}
	})
}
