package prefill_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// delayed is a connection whose writes take a while.
type delayed struct {
	net.Conn
	each time.Duration
}

func (d delayed) Write(b []byte) (int, error) {
	time.Sleep(d.each)
	return d.Conn.Write(b)
}

// TestPutsUnderLoad: where one prompt alone fills most of the pool and others wait for its
// blocks, they are put before they are evicted, and nobody waits for it.
func TestPutsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		s.network.wrap = map[string]func(net.Conn) net.Conn{"store-1:1": func(c net.Conn) net.Conn { return delayed{c, time.Millisecond} }}
		g := s.worker("prefill-1", nil)
		var clients sync.WaitGroup
		for client := range maxWaiting {
			p := g.newPeer(fmt.Sprintf("decode-%d", client), uint64(11+client))
			clients.Go(func() {
				for i := range 8 {
					g.right(p, prompt(25*blockTokens-1, 100*client+i), nil)
				}
			})
		}
		clients.Wait()
		evictions := g.count("tandem_worker_prefix_cache_evictions_total", "")
		saved := g.count("tandem_worker_prefix_cache_saved_evictions_total", "")
		if evictions < 500 || saved < evictions*9/10 {
			t.Errorf("%d of %d evictions were put before, %d were never offered; %d puts, %d stopped", saved, evictions,
				g.count("tandem_worker_prefix_cache_unoffered_evictions_total", ""), g.puts("put"), g.puts("stopped"))
		}
		time.Sleep(time.Minute)
		g.idle()
		if stats := g.service.Driver().PoolStats(); stats.Misuses != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// TestFailedPutIsTriedOnceMore: once the store does not rest any more, and not again
// after that.
func TestFailedPutIsTriedOnceMore(t *testing.T) {
	for _, c := range []struct {
		name    string
		returns bool // the store, while it rests
		failed  int
		put     int
	}{
		{"it comes back", true, 1, 1},
		{"it stays away", false, 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t)
				g := s.worker("prefill-1", nil)
				p := g.newPeer("decode-1", 11)
				s.set(peerOf("store-1")) // nobody listens there
				g.right(p, prompt(99, 1), nil)
				// Long before the store does not rest any more, so that by then its
				// connection has been tried again, whatever the jitter of that.
				time.Sleep(100 * time.Millisecond)
				if g.puts("failed") != 1 {
					t.Fatalf("%d puts failed", g.puts("failed"))
				}
				if c.returns {
					s.set()
					s.open("store-1")
				}
				time.Sleep(time.Minute)
				if g.puts("failed") != c.failed || g.puts("put") != c.put || g.puts("no_store") != 0 {
					t.Errorf("%d puts failed, %d put, %d without a store; want %d, %d, 0", g.puts("failed"), g.puts("put"), g.puts("no_store"), c.failed, c.put)
				}
				g.idle()
			})
		})
	}
}
