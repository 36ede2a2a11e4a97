package prefill_test

import (
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// A request that waits for another one's fetch is told what that brings of its own
// prompt, and tells nothing of the store; a source elsewhere is no fetch to wait for.
func TestJoinedFetchesAreCreditedRightly(t *testing.T) {
	const (
		given = workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
		none  = workerv1.FetchVerdict_FETCH_VERDICT_UNSPECIFIED
	)
	for _, c := range []struct {
		name    string
		store   string
		shared  int // leading blocks of the first prompt
		blocks  int // that the store is said to have
		fetched int
		verdict workerv1.FetchVerdict
		joined  int
	}{
		{"all of it", "store-1", whole, whole, whole, none, 1},
		{"less", "store-1", 10, 10, 10, none, 1},
		{"what it brings of another prompt", "store-1", 9, whole, 9, none, 1},
		{"from another store", "store-9", 10, 10, 0, none, 0}, // nor is there room
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, g, gate, first, tokens := stuck(t)
				var all sync.WaitGroup
				all.Go(func() {
					started := g.right(first, tokens, source("store-1", whole))
					if started.GetFetchedTokens() != whole*blockTokens || started.GetFetchVerdict() != given {
						t.Errorf("who began it: %v", started)
					}
				})
				time.Sleep(time.Millisecond)
				p := g.newPeer("decode-9", 19)
				all.Go(func() {
					tail := prompt((whole-c.shared)*blockTokens+3, 60)
					started := g.right(p, append(tokens[:c.shared*blockTokens:c.shared*blockTokens], tail...), source(c.store, c.blocks))
					if started.GetFetchedTokens() != uint32(c.fetched*blockTokens) || started.GetFetchVerdict() != c.verdict || started.GetFetchNs() == 0 != (c.store != "store-1") {
						t.Errorf("who joined: %v", started)
					}
				})
				time.Sleep(5 * time.Millisecond)
				gate.open()
				all.Wait()
				time.Sleep(time.Second)
				if got := g.fetches("joined"); got != c.joined {
					t.Errorf("%d joined, want %d", got, c.joined)
				}
				g.idle()
			})
		})
	}
}

// What a fetch in vain says of the store.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		g.warm(p)
		for i, c := range []struct {
			source *workerv1.BlockSource
			want   workerv1.FetchVerdict
		}{
			{source("store-1", whole), workerv1.FetchVerdict_FETCH_VERDICT_STALE},
			{&workerv1.BlockSource{WorkerId: "store-1", Epoch: 5, Addresses: []string{"store-1:1"}, Blocks: whole}, workerv1.FetchVerdict_FETCH_VERDICT_STALE},
			{source("store-8", whole), workerv1.FetchVerdict_FETCH_VERDICT_FAILED},
			{source("store-8", whole), workerv1.FetchVerdict_FETCH_VERDICT_UNSPECIFIED}, // it rests
		} {
			if started := g.right(p, prompt(whole*blockTokens+3, 40+i), c.source); started.GetFetchVerdict() != c.want {
				t.Errorf("%v: %v, want %v", c.source, started, c.want)
			}
		}
		time.Sleep(time.Second)
		g.idle()
	})
}

// TestSharedPrefixIsPut: while one put brings what many prompts begin with, the others wait for
// it: in the end the store has all that was evicted, and is not said to be in trouble.
func TestSharedPrefixIsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		store := s.open("store-1")
		s.network.wrap = map[string]func(net.Conn) net.Conn{"store-1:1": func(c net.Conn) net.Conn { return delayed{c, 20 * time.Millisecond} }}
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		shared := prompt(8*blockTokens, 1)
		var want []kvcache.Hash
		for i := range 6 {
			tokens := slices.Concat(shared, prompt(4*blockTokens+3, 50+i))
			g.right(p, tokens, nil)
			want = append(want, g.hashes(tokens)...)
		}
		if g.puts("put") > 0 {
			t.Error("the first put has ended before the others began")
		}
		for i := range 3 {
			time.Sleep(time.Minute)
			g.right(p, prompt(whole*blockTokens, 70+i), nil)
		}
		time.Sleep(time.Minute)
		g.idle()
		held := store.Hashes()
		if lacking := slices.DeleteFunc(want, func(h kvcache.Hash) bool { return slices.Contains(held, h) }); len(lacking) > 0 {
			t.Errorf("the store lacks %d of %d blocks", len(lacking), len(want))
		}
		if n := g.puts("arriving") + g.puts("busy") + g.puts("failed"); n > 0 {
			t.Errorf("%d puts were in vain", n)
		}
	})
}

// hashes are those of a prompt's whole blocks.
func (g *rig) hashes(tokens []uint32) []kvcache.Hash {
	ids := make([]int32, len(tokens))
	for i, token := range tokens {
		ids[i] = int32(token)
	}
	return g.service.Driver().BlockHashes("", ids)
}
