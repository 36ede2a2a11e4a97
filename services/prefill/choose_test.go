package prefill_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/offload"
)

// Stores that hold blocks of another layout are offered none, unless there are no
// others.
func TestStoresOfAnotherLayoutComeLast(t *testing.T) {
	for _, c := range []struct {
		name   string
		digest func(own uint64) uint64 // of the store that is there
		put    bool
		failed bool
	}{
		{"the same layout", func(own uint64) uint64 { return own }, true, false},
		{"none yet", func(uint64) uint64 { return 0 }, true, false},
		{"another one", func(own uint64) uint64 { return own + 1 }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, "store-1")
				g := s.worker("prefill-1", nil)
				own := g.service.Driver().Layout().Digest()
				there := peerOf("store-1")
				there.LayoutDigest = c.digest(own)
				stores := []offload.Store{there}
				// Nobody listens at these: an offer fails.
				for _, id := range []string{"store-2", "store-3", "store-4", "store-5", "store-6"} {
					other := peerOf(id)
					other.LayoutDigest = own + 2
					stores = append(stores, other)
				}
				s.set(stores...)
				p := g.newPeer("decode-1", 11)
				for seed := range 6 {
					g.right(p, prompt(33, seed), nil)
					time.Sleep(time.Second)
				}
				if put, failed := g.puts("put") > 0, g.puts("failed") > 0; failed != c.failed || c.put && !put {
					t.Errorf("%d put, %d failed", g.puts("put"), g.puts("failed"))
				}
				time.Sleep(time.Minute)
				g.idle()
			})
		})
	}
}
