package prefill_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/services/prefill"
)

// stuck is a worker whose fetches hang until the gate opens, and what the store
// has.
func stuck(t *testing.T) (s *shop, g *rig, gate *gatedPages, p *peer, tokens []uint32) {
	t.Helper()
	s = newShop(t, "store-1")
	one := s.worker("prefill-1", nil)
	g, gate = s.gatedWorker("prefill-2")
	p = one.newPeer("decode-1", 11)
	tokens = s.filled(one, p)
	g.warm(p)
	gate.shut()
	return s, g, gate, p, tokens
}

// TestSlowStoreCostsLittle: a fetch that takes longer than computing is given up,
// the prompt computed, and the store left alone for a while.
func TestSlowStoreCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g, gate, p, tokens := stuck(t)
		began := time.Now()
		started := g.right(p, tokens, source("store-1", whole))
		const computing = 5 * stepTime
		if took := time.Since(began); took > computing*5/2 {
			t.Errorf("took %v, computing takes %v", took, computing)
		}
		if waited := time.Duration(started.GetFetchNs()); started.GetCachedTokens() != 0 || started.GetFetchedTokens() != 0 || waited < computing/2 || waited > computing*5/4 {
			t.Errorf("%v", started)
		}
		if load, _ := g.service.Driver().Load(); load.BlocksFree == load.BlocksTotal {
			t.Error("the blocks were given back while they may be written")
		}
		other := prompt(60, 7)
		if started := g.right(p, other, source("store-1", 14)); started.GetFetchNs() != 0 || g.fetches("backing_off") != 1 {
			t.Errorf("the store is not left alone: %v", started)
		}
		gate.open()
		synctest.Wait()
		if g.fetches("slow") != 1 {
			t.Error("the fetch does not count as slow")
		}
		g.idle()
		time.Sleep(time.Minute + time.Second) // what was measured is forgotten
		if started := g.right(p, append(tokens[:whole*blockTokens:whole*blockTokens], 3, 3, 3), source("store-1", whole)); started.GetCachedTokens() != whole*blockTokens {
			t.Errorf("%v", started)
		}
		time.Sleep(time.Second)
		g.idle()
	})
}

func TestTroubleWhileFetching(t *testing.T) {
	for _, c := range []struct {
		name   string
		happen func(t *testing.T, s *shop, g *rig, cancel context.CancelFunc)
		code   codes.Code
		reason string
	}{
		{"the client goes", func(_ *testing.T, _ *shop, _ *rig, cancel context.CancelFunc) { cancel() }, codes.Canceled, ""},
		{"the store dies", func(_ *testing.T, s *shop, _ *rig, _ context.CancelFunc) { s.network.kill("store-1:1") }, codes.OK, ""},
		{"the decode worker dies", func(_ *testing.T, s *shop, _ *rig, _ context.CancelFunc) { s.network.kill("decode-9:1") }, codes.Unavailable, api.ReasonTransferFailed},
		{"the worker drains", func(t *testing.T, _ *shop, g *rig, _ context.CancelFunc) {
			if _, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{}); err != nil {
				t.Error(err)
			}
		}, codes.OK, ""},
		{"the worker is drained at once", func(_ *testing.T, _ *shop, g *rig, _ context.CancelFunc) {
			g.service.Leave(0)
			g.service.Driver().CancelAll()
		}, codes.Unavailable, api.ReasonWorkerDraining},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, g, gate, _, tokens := stuck(t)
				p := g.newPeer("decode-9", 19)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan answer, 1)
				go func() {
					a, _ := g.ask(ctx, p, tokens, source("store-1", whole))
					ended <- a
				}()
				time.Sleep(10 * time.Millisecond)
				if load, _ := g.service.Driver().Load(); load.BlocksReserved < whole {
					t.Fatalf("%+v: nothing is fetched", load)
				}
				c.happen(t, s, g, cancel)
				a := <-ended
				if c.code != codes.OK {
					wantError(t, c.name, a.err, c.code, c.reason)
				} else if a.err != nil || a.first.GetTokenId() != firstToken(t, tokens) || a.started.GetCachedTokens() != 0 {
					t.Errorf("%v, error %v", a.started, a.err)
				}
				gate.open()
				time.Sleep(time.Second)
				g.idle()
				if stats := g.service.Driver().PoolStats(); stats.Misuses != 0 {
					t.Errorf("%+v", stats)
				}
			})
		})
	}
}

// TestStoppedWhileFetching: Run returns with nothing left.
func TestStoppedWhileFetching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g, gate, p, tokens := stuck(t)
		go func() { _, _ = g.ask(t.Context(), p, tokens, source("store-1", whole)) }()
		time.Sleep(10 * time.Millisecond)
		time.AfterFunc(time.Second, gate.open) // a copy that has begun is waited for
		g.stop()
	})
}

func TestStoreThatDoesNotHaveIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		source *workerv1.BlockSource
		result string
		rests  bool
	}{
		{"it lost some", source("store-1", whole), "missing", false},
		{"it is another incarnation", &workerv1.BlockSource{WorkerId: "store-1", Epoch: 5, Addresses: []string{"store-1:1"}, Blocks: whole}, "failed", false},
		{"it is not there", source("store-9", whole), "failed", true},
		{"nobody knows where", &workerv1.BlockSource{WorkerId: "store-9", Epoch: 5, Blocks: whole}, "failed", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, "store-1")
				g := s.worker("prefill-1", nil)
				p := g.newPeer("decode-1", 11)
				g.warm(p)
				for seed, result := range []string{c.result, map[bool]string{true: "backing_off", false: c.result}[c.rests]} {
					before := g.fetches(result)
					started := g.right(p, prompt(whole*blockTokens+3, 30+seed), c.source)
					if started.GetCachedTokens() != 0 || started.GetFetchedTokens() != 0 {
						t.Errorf("%v", started)
					}
					if g.fetches(result) != before+1 {
						t.Errorf("prompt %d does not count as %s", seed, result)
					}
				}
				time.Sleep(time.Second)
				g.idle()
			})
		})
	}
}

// TestStoresComeAndGo: nothing is put where nobody takes it, and a store that
// failed is tried again.
func TestStoresComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		g.right(p, prompt(99, 1), nil)
		time.Sleep(time.Second)
		g.idle()
		s.set(peerOf("store-1")) // etcd has it before it can be reached
		time.Sleep(10 * time.Second)
		if g.puts("failed") == 0 || g.puts("put") != 0 {
			t.Fatalf("%d puts failed, %d did not", g.puts("failed"), g.puts("put"))
		}
		s.set()
		s.open("store-1")
		time.Sleep(time.Minute)
		g.right(p, prompt(99, 2), nil)
		time.Sleep(time.Second)
		if g.puts("put") == 0 {
			t.Error("nothing is put though the store is there")
		}
		s.set()
		before := g.puts("put")
		g.right(p, prompt(99, 3), nil)
		time.Sleep(time.Second)
		if g.puts("put") != before {
			t.Error("something was put into a store that left")
		}
		g.idle()
	})
}

// A put that the end of the worker cuts off is no failure of the store.
func TestStoppedWhilePutting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		stop := s.hang("store-1")
		defer stop()
		g.right(p, prompt(99, 1), nil)
		time.Sleep(100 * time.Millisecond)
		g.stop()
		if stopped, failed := g.puts("stopped"), g.puts("failed"); stopped == 0 || failed != 0 {
			t.Errorf("%d puts stopped, %d failed", stopped, failed)
		}
	})
}

// TestPutsGiveWay: blocks that are being put are had by a request that needs them.
func TestPutsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		g := s.worker("prefill-1", func(c *prefill.Config) { c.StorePuts = 8 })
		p := g.newPeer("decode-1", 11)
		stop := s.hang("store-1")
		defer stop()
		g.right(p, prompt(99, 1), nil)
		time.Sleep(100 * time.Millisecond)
		if load, _ := g.service.Driver().Load(); load.BlocksFree == load.BlocksTotal {
			t.Fatal("nothing is put")
		}
		began := time.Now()
		g.right(p, prompt(150, 2), nil)
		if took := time.Since(began); took > 11*stepTime {
			t.Errorf("the request took %v", took)
		}
		if g.puts("stopped") == 0 {
			t.Error("no put was stopped")
		}
		time.Sleep(time.Minute)
		s.set()
		g.idle()
	})
}
