package kvtransfer_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// overMapped runs a test in a bubble, with sessions of one stream and of several whose sender maps the
// receiver's pages.
func overMapped(t *testing.T, test func(t *testing.T, g *rig)) {
	for _, streams := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d streams", streams), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, newRig(t, func(c *rigConfig) { c.mapped, c.sender.Streams = true, streams }))
			})
		})
	}
}

// store writes one layer of blocks, from first on, where a mirror has them, as an engine does.
func store(t *testing.T, m engine.Mirror, layer, first int, pages [][]byte) {
	t.Helper()
	if !m.Hold(layer) {
		t.Fatal("the pages cannot be written")
	}
	defer m.Release()
	for i, page := range pages {
		copy(m.View(layer, first+i), page[layer*sliceBytes:(layer+1)*sliceBytes])
	}
}

// What an engine stores in the receiver's pages arrives as it is there: it is not copied from the
// sender's own pages, in which the test has other bytes. What it does not store is.
func TestMirror(t *testing.T) {
	overMapped(t, func(t *testing.T, g *rig) {
		const held, first, end, blocks = 1, 3, 7, 9
		source, target := kvcache.BlockRange(0, blocks), kvcache.BlockRange(32, blocks)
		computed := make([][]byte, blocks)
		for i, b := range source {
			computed[i] = g.from.Page(b)
			if i >= first && i < end {
				g.from.Fill(b, 77)
			}
		}
		ticket, o := g.reserve(target, held, blocks)
		tr := g.open(ticket)
		for layer := range layers {
			tr.Send(layer, held, source[held:first]) // of a cache
		}
		for _, part := range []struct{ from, until int }{{first, first + 1}, {first + 1, end}} {
			m := tr.Mirror(part.from, part.until-part.from)
			for layer := range layers {
				store(t, m, layer, part.from, computed[part.from:part.until])
				tr.Send(layer, part.from, source[part.from:part.until])
			}
			if m.View(0, part.from-1) != nil || m.View(0, part.until) != nil {
				t.Error("a mirror shows blocks that are not its own")
			}
		}
		last := tr.Mirror(end, blocks-end) // of an engine that does not use it
		for layer := range layers {
			tr.Send(layer, end, source[end:])
		}
		tr.Commit(nil)
		wait(t, "committed", o.over)
		wait(t, "done", tr.Done())
		if tr.Err() != nil || !o.committed {
			t.Fatalf("%v at the sender, %v at the receiver", tr.Err(), o.err)
		}
		for i := held; i < blocks; i++ {
			if !bytes.Equal(g.to.Page(target[i]), computed[i]) {
				t.Errorf("block %d is not what was computed", i)
			}
		}
		if s := tr.Stats(); s.Stored != (end-first)*layers*sliceBytes || s.Bytes != (blocks-held)*layers*sliceBytes {
			t.Errorf("%d of %d bytes are said to be stored", s.Stored, s.Bytes)
		}
		if last.Hold(0) {
			t.Error("the pages can be written after the commit")
		}
		g.checkShut()
	})
}

// A transfer that ends while an engine writes into the receiver's pages keeps them open for it, and
// the receiver's blocks from others, until it has written.
func TestMirrorOutlivesItsTransfer(t *testing.T) {
	for end, happen := range map[string]func(*rig, *kvtransfer.Transfer, *kvtransferv1.Ticket){
		"aborted": func(_ *rig, tr *kvtransfer.Transfer, _ *kvtransferv1.Ticket) {
			tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		},
		"the receiver cancels": func(g *rig, _ *kvtransfer.Transfer, ticket *kvtransferv1.Ticket) {
			g.receiver.Cancel(ticket.GetTransferId())
		},
		"the connection ends": func(g *rig, _ *kvtransfer.Transfer, _ *kvtransferv1.Ticket) { g.stop() },
	} {
		t.Run(end, func(t *testing.T) {
			overMapped(t, func(t *testing.T, g *rig) {
				ticket, o := g.reserve(kvcache.BlockRange(32, 4), 0, 4)
				tr := g.open(ticket)
				m := tr.Mirror(0, 4)
				if !m.Hold(1) {
					t.Fatal("the pages cannot be written")
				}
				happen(g, tr, ticket)
				synctest.Wait()
				if o.isDrained() {
					t.Error("the blocks are free while an engine writes into them")
				}
				for block := range 4 {
					m.View(1, block)[0] = 1 // the rig reports it if they are not open
				}
				m.Release()
				wait(t, "drained", o.over)
				synctest.Wait()
				if m.Hold(0) {
					t.Error("the pages can still be written")
				}
				g.checkShut()
			})
		})
	}
}

// There is a mirror only of blocks that are sent, and only where the receiver's pages are mapped.
func TestNoMirror(t *testing.T) {
	overMapped(t, func(t *testing.T, g *rig) {
		ticket, _ := g.reserve(kvcache.BlockRange(32, 4), 1, 4)
		tr := g.open(ticket)
		for _, part := range [][2]int{{0, 2}, {3, 2}, {1, 0}, {5, 1}, {1, -1}} {
			if tr.Mirror(part[0], part[1]) != nil {
				t.Errorf("%d blocks from %d on have a mirror", part[1], part[0])
			}
		}
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-tr.Done()
	})
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		ticket, _ := g.reserve(kvcache.BlockRange(32, 4), 0, 4)
		tr := g.open(ticket)
		if tr.Mirror(0, 4) != nil {
			t.Error("pages that are not mapped have a mirror")
		}
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-tr.Done()
	})
}

// Transfers of which engines store a part, many at a time, ended at any moment by either side: what is
// committed is whole, and nobody writes into blocks that are free.
func TestMirrorsAtRandom(t *testing.T) {
	overMapped(t, func(t *testing.T, g *rig) {
		var tasks sync.WaitGroup
		for i := range 8 {
			tasks.Go(func() {
				r := rand.New(rand.NewPCG(11, uint64(i)))
				target := kvcache.BlockRange(8*i, 8)
				for range 25 {
					mirrorAtRandom(t, g, r, target)
				}
			})
		}
		tasks.Wait()
		g.checkShut()
	})
}

func mirrorAtRandom(t *testing.T, g *rig, r *rand.Rand, target []kvcache.BlockID) {
	pause := func(most int) { time.Sleep(time.Duration(r.IntN(most)) * time.Microsecond) }
	ticket, o := g.reserve(target, 0, len(target))
	tr := g.open(ticket)
	end := r.IntN(4) // 0, 1: nobody ends it early
	var ending sync.WaitGroup
	after := time.Duration(r.IntN(60)) * time.Microsecond
	ending.Go(func() {
		time.Sleep(after)
		switch end {
		case 2:
			tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		case 3:
			g.receiver.Cancel(ticket.GetTransferId())
		}
	})
	for first := 0; first < len(target); {
		n := min(1+r.IntN(4), len(target)-first)
		m := tr.Mirror(first, n)
		from := r.IntN(layers + 1) // the first layer that an engine stores
		for layer := range layers {
			if layer >= from && m.Hold(layer) {
				for b := first; b < first+n; b++ {
					copy(m.View(layer, b), g.from.View(layer, target[b]))
					pause(3)
				}
				m.Release()
			}
			tr.Send(layer, first, target[first:first+n])
			pause(5)
		}
		first += n
	}
	tr.Commit(nil)
	wait(t, "done", tr.Done())
	wait(t, "over", o.over)
	ending.Wait()
	if o.committed {
		g.checkPages(target, target)
	} else if end < 2 {
		t.Errorf("a transfer that nobody ended: %v, %v", tr.Err(), o.failed())
	}
	// The blocks are free, and get other bytes: writes that are late change them.
	for _, b := range target {
		g.to.Fill(b, 123)
	}
	pause(20)
	for _, b := range target {
		before := g.to.Page(b)
		g.to.Fill(b, 123)
		if !bytes.Equal(before, g.to.Page(b)) {
			t.Errorf("block %d was written when it was free", b)
		}
	}
}
