package prefill_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/services/prefill"
)

const (
	storeEpoch = 21
	// fast is a bandwidth at which anything is worth fetching.
	fast = 1 << 30
)

// shop is a network with block stores, and who knows of them.
type shop struct {
	t       *testing.T
	network *network

	mu     sync.Mutex
	peers  []offload.Store
	notify []func([]offload.Store)
}

func newShop(t *testing.T, stores ...string) *shop {
	t.Helper()
	s := &shop{t: t, network: newNetwork()}
	for _, id := range stores {
		s.open(id)
	}
	return s
}

// open starts a store for the rest of the test and tells the workers.
func (s *shop) open(id string) *kvtransfertest.Store {
	s.t.Helper()
	to := peerOf(id)
	store, err := kvtransfertest.NewStore(kvtransfertest.StoreConfig{
		Peer: to, Layout: newEngine(s.t, nil).Capacity().Layout, Blocks: 2048, MaxPuts: 8, Lease: 5 * time.Second, Dial: s.network.dial,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	stop := serve(s.t, s.network.listen(to.Addresses[0]), store.Register)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			s.t.Errorf("store: %v", err)
		}
		stop()
	})
	s.set(append(s.peers, to)...)
	return store
}

// hang has a store listen and never answer, and tells the workers.
func (s *shop) hang(id string) (stop func()) {
	s.t.Helper()
	listener := s.network.listen(id + ":1")
	s.set(append(s.peers, peerOf(id))...)
	return func() { _ = listener.Close() }
}

func peerOf(id string) offload.Store {
	return offload.Store{ID: id, Epoch: storeEpoch, Addresses: []string{id + ":1"}}
}

// set says which stores there are.
func (s *shop) set(peers ...offload.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = peers
	for _, notify := range s.notify {
		notify(peers)
	}
}

// watch is a worker's Deps.Stores.
func (s *shop) watch(ctx context.Context, notify func([]offload.Store)) error {
	s.mu.Lock()
	s.notify = append(s.notify, notify)
	notify(s.peers)
	s.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// worker starts a prefill worker that knows the stores.
func (s *shop) worker(id string, change func(*prefill.Config)) *rig {
	s.t.Helper()
	return newWorker(s.t, s.network, id, func(cfg *prefill.Config, deps *prefill.Deps) {
		cfg.StorePuts, cfg.FetchBandwidth = 2, fast
		if change != nil {
			change(cfg)
		}
		deps.Stores = s.watch
	})
}

// gatedWorker is one whose pages take what is fetched only while the gate is open.
func (s *shop) gatedWorker(id string) (*rig, *gatedPages) {
	s.t.Helper()
	gate := new(gatedPages)
	g := newWorker(s.t, s.network, id, func(cfg *prefill.Config, deps *prefill.Deps) {
		cfg.StorePuts, cfg.FetchBandwidth = 2, fast
		deps.Stores = s.watch
		gate.Pages = deps.Engine.Pages()
		deps.Engine = gatedEngine{deps.Engine.(*simulated.Engine), gate}
	})
	s.t.Cleanup(gate.open)
	return g, gate
}

// gatedEngine computes as ever; what is written into its pages from outside waits
// at the gate.
type gatedEngine struct {
	*simulated.Engine
	pages *gatedPages
}

func (e gatedEngine) Pages() engine.Pages { return e.pages }

// View implements engine.Pages as a device does whose memory is not the host's, so
// that all goes through Write.
func (p *gatedPages) View(int, kvcache.BlockID) []byte { return nil }

// count is a counter's value; result is empty for one without that label.
func (g *rig) count(name, result string) int {
	g.t.Helper()
	families, err := g.metrics.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["result"] == result {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	g.t.Fatalf("no metric %s with result %q", name, result)
	return 0
}

func (g *rig) fetches(result string) int {
	return g.count("tandem_prefill_store_fetches_total", result)
}
func (g *rig) puts(result string) int { return g.count("tandem_prefill_store_puts_total", result) }

// ask runs a prompt whose leading blocks a store is said to have.
func (g *rig) ask(ctx context.Context, p *peer, tokens []uint32, source *workerv1.BlockSource) (answer, *reservation) {
	g.t.Helper()
	r := p.reserve(len(tokens), 0)
	return g.run(ctx, &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket, Source: source}), r
}

// right checks that a prompt was answered as if it had been computed.
func (g *rig) right(p *peer, tokens []uint32, source *workerv1.BlockSource) *workerv1.PrefillStarted {
	g.t.Helper()
	a, r := g.ask(context.Background(), p, tokens, source)
	if a.err != nil {
		g.t.Fatalf("prompt of %d: %v", len(tokens), a.err)
	}
	if want := firstToken(g.t, tokens); a.first.GetTokenId() != want {
		g.t.Errorf("prompt of %d: first token %d, want %d", len(tokens), a.first.GetTokenId(), want)
	}
	p.holdsKVOf(r, tokens, 0)
	return a.started
}

// source says that a store has so many leading blocks.
func source(id string, blocks int) *workerv1.BlockSource {
	return &workerv1.BlockSource{WorkerId: id, Epoch: storeEpoch, Addresses: []string{id + ":1"}, Blocks: uint32(blocks)}
}

// whole is how many whole blocks the prompt of filled has.
const whole = 16

// filled has worker g compute a prompt and another one, so that it puts the first
// into the store, which it returns.
func (s *shop) filled(g *rig, p *peer) []uint32 {
	s.t.Helper()
	tokens := prompt(whole*blockTokens+3, 1)
	g.right(p, tokens, nil)
	g.right(p, prompt(whole*blockTokens+3, 2), nil)
	time.Sleep(time.Second)
	if g.puts("put") == 0 {
		s.t.Fatal("nothing was put")
	}
	g.idle()
	return tokens
}

// warm has a worker measure its own speed.
func (g *rig) warm(p *peer) {
	g.t.Helper()
	for i, n := range []int{17, 33, 7, 27} {
		g.right(p, prompt(n, 90+i), nil)
	}
	time.Sleep(time.Second)
	g.idle()
}

func TestEvictedPrefixIsFetchedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		store := s.open("store-1")
		one, two := s.worker("prefill-1", nil), s.worker("prefill-2", nil)
		p := one.newPeer("decode-1", 11)
		tokens := s.filled(one, p)
		if blocks := len(store.Hashes()); blocks < whole {
			t.Errorf("the store has %d blocks, want %d at least", blocks, whole)
		}
		for seed := range 4 { // evicts it
			one.right(p, prompt(99, 20+seed), nil)
		}
		time.Sleep(time.Second)
		two.warm(p)
		for _, g := range []*rig{two, one} {
			before := g.layers.Computed()
			started := g.right(p, tokens, source("store-1", whole))
			if started.GetCachedTokens() != whole*blockTokens || started.GetFetchedTokens() != whole*blockTokens {
				t.Errorf("%v, want all whole blocks fetched", started)
			}
			if steps := (g.layers.Computed() - before) / layers; steps != 1 {
				t.Errorf("computed in %d steps, want 1", steps)
			}
			// It is in the prefix cache now, and is not fetched again.
			if started := g.right(p, tokens, source("store-1", whole)); started.GetCachedTokens() != whole*blockTokens || started.GetFetchedTokens() != 0 || started.GetFetchNs() != 0 {
				t.Errorf("the second time: %v", started)
			}
			if got := g.fetches("fetched"); got != 1 {
				t.Errorf("%d fetches, want 1", got)
			}
			time.Sleep(time.Second)
			g.idle()
		}
	})
}

// TestEvictionIsPutFirst: whatever a worker evicted, given time, the store has.
func TestEvictionIsPutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		store := s.open("store-1")
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		for seed := range 12 {
			g.right(p, prompt(33, seed), nil)
			time.Sleep(time.Second)
		}
		g.idle()
		evictions := g.count("tandem_worker_prefix_cache_evictions_total", "")
		if evictions == 0 || g.count("tandem_worker_prefix_cache_saved_evictions_total", "") != evictions {
			t.Errorf("%d evictions, %d of them saved", evictions, g.count("tandem_worker_prefix_cache_saved_evictions_total", ""))
		}
		if blocks := len(store.Hashes()); blocks < evictions {
			t.Errorf("the store has %d blocks, evicted were %d", blocks, evictions)
		}
		if g.puts("held")+g.puts("failed")+g.puts("stopped")+g.puts("busy") != 0 {
			t.Error("some puts were in vain")
		}
	})
}

func TestWhatIsNotFetched(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*prefill.Config)
		cold   bool // the engine was never measured
		blocks int
		cached bool // the worker has the prompt already
		result string
	}{
		{name: "the store is slow", change: func(c *prefill.Config) { c.FetchBandwidth = 10_000 }, blocks: whole, result: "declined"},
		{name: "fetching is switched off", change: func(c *prefill.Config) { c.FetchBandwidth = 0 }, blocks: whole, result: "declined"},
		{name: "nobody knows how fast the engine is", cold: true, blocks: whole, result: "declined"},
		{name: "it is here", blocks: whole, cached: true},
		{name: "the store has nothing", blocks: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, "store-1")
				one, two := s.worker("prefill-1", nil), s.worker("prefill-2", c.change)
				p := one.newPeer("decode-1", 11)
				tokens := s.filled(one, p)
				if !c.cold {
					two.warm(p)
				}
				if c.cached {
					two.right(p, tokens, nil)
				}
				started := two.right(p, tokens, source("store-1", c.blocks))
				if started.GetFetchedTokens() != 0 || started.GetFetchNs() != 0 || started.GetCachedTokens() != 0 != c.cached {
					t.Errorf("%v", started)
				}
				if c.result != "" && two.fetches(c.result) != 1 {
					t.Errorf("it does not count as %s", c.result)
				}
				time.Sleep(time.Second)
				two.idle()
			})
		})
	}
}

func TestPromptsOfOnePrefixFetchItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		one := s.worker("prefill-1", nil)
		two, gate := s.gatedWorker("prefill-2")
		p := one.newPeer("decode-1", 11)
		tokens := s.filled(one, p)
		two.warm(p)
		gate.shut()
		var all sync.WaitGroup
		for i := range maxWaiting {
			p := two.newPeer(fmt.Sprintf("decode-%d", 2+i), 11)
			all.Go(func() {
				if started := two.right(p, tokens, source("store-1", whole)); started.GetFetchedTokens() != whole*blockTokens || started.GetFetchNs() != int64(10*time.Millisecond) {
					t.Errorf("%v, want all whole blocks that were waited for", started)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		gate.open()
		all.Wait()
		if got := two.fetches("fetched"); got != 1 {
			t.Errorf("%d fetches, want 1", got)
		}
		time.Sleep(time.Second)
		two.idle()
	})
}
