package kvtransfer_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// transport sends four blocks and returns over what.
func (g *rig) transport(first int) string {
	g.t.Helper()
	source, target := kvcache.BlockRange(first, 4), kvcache.BlockRange(32+first, 4)
	ticket, o := g.reserve(target, 0, 4)
	tr := g.open(ticket)
	synctest.Wait() // for the pages
	sendAll(tr, source, 0, 4)
	tr.Commit(nil)
	wait(g.t, "done", tr.Done())
	wait(g.t, "committed", o.over)
	if tr.Err() != nil || !o.committed {
		g.t.Errorf("%v at the sender, %v at the receiver", tr.Err(), o.err)
	}
	g.checkPages(source, target)
	return tr.Stats().Transport
}

// A sender that was given the pages and cannot map them sends over the session's streams. It tries
// again, more and more seldom, and maps them when it can.
func TestSenderCannotMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.mapped, c.sender.Streams = true, 3 })
		g.mapError = errors.New("cannot allocate memory")
		for i, step := range []struct {
			after time.Duration
			tries int
		}{{0, 1}, {time.Second - 1, 1}, {1, 2}, {2*time.Second - 1, 2}, {1, 3}} {
			time.Sleep(step.after)
			if over := g.transport(4 * i); over == "shm" {
				t.Errorf("transfer %d goes over %s", i, over)
			}
			if g.mapTries != step.tries {
				t.Errorf("transfer %d: %d tries, want %d", i, g.mapTries, step.tries)
			}
		}
		if s := g.receiver.Stats(); s.Streams != 3 || s.Mappings != 0 {
			t.Errorf("stats %+v", s)
		}
		g.mapError = nil
		time.Sleep(4 * time.Second)
		g.transport(20) // does not wait for it
		for range 2 {
			if over := g.transport(24); over != "shm" || g.mapTries != 4 {
				t.Errorf("once they can be mapped: %s, %d tries", over, g.mapTries)
			}
		}
		g.checkShut()
	})
}

// A sender that cannot open the pages it has mapped fails that transfer, and sends those to come over
// the session's streams. It tries again later, and need not map the pages for that. What it waits grows
// until it can open some. Pages that are not there are the receiver's fault.
func TestSenderCannotOpenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.mapped = true })
		want := func(what string, shm bool) {
			t.Helper()
			if over := g.transport(0); (over == "shm") != shm {
				t.Errorf("%s: over %s", what, over)
			}
		}
		fails := func(err error, broken bool) {
			t.Helper()
			g.openError = err
			ticket, o := g.reserve(kvcache.BlockRange(32, 4), 0, 4)
			if _, err := g.sender.Open(t.Context(), ticket, "r"); !errors.Is(err, g.openError) || isBroken(err) != broken {
				t.Errorf("the transfer ends with %v", err)
			}
			wait(t, "drained", o.over)
			g.openError = nil
		}
		waits := func(pause time.Duration) {
			t.Helper()
			fails(os.NewSyscallError("mprotect", syscall.ENOMEM), false)
			want("the next one", false)
			time.Sleep(pause - 1)
			want("within its wait", false)
			time.Sleep(time.Nanosecond)
		}
		want("at first", true)
		waits(time.Second)
		waits(2 * time.Second)
		want("later", true)
		waits(time.Second)
		want("later", true)
		fails(errors.New("block 99 is not one of 64"), true)
		want("the one after a page that is not there", true)
		if s := g.receiver.Stats(); g.mapTries != 1 || s.Streams != 1 || s.Mappings != 1 {
			t.Errorf("%d tries, stats %+v", g.mapTries, s)
		}
		g.checkShut()
	})
}

// A session that was begun with a ticket of no use maps the pages with a later one.
func TestMapWithALaterTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.mapped = true })
		ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
		g.receiver.Cancel(ticket.GetTransferId())
		<-o.over
		if _, err := g.sender.Open(t.Context(), ticket, "r"); refuseReason(err) == 0 {
			t.Errorf("a ticket that was cancelled: %v", err)
		}
		time.Sleep(time.Second)
		g.transport(0) // does not wait for it
		if over := g.transport(4); over != "shm" {
			t.Errorf("the one after it goes over %s", over)
		}
		if s := g.receiver.Stats(); s.Streams != 1 || s.Mappings != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A transfer does not wait while its sender asks for the pages again. A session that ends meanwhile
// leaves no mapping.
func TestMapAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.mapped = true })
		g.mapError = errors.New("cannot allocate memory")
		g.transport(0)
		g.mapError, g.mapLate = nil, true
		time.Sleep(time.Second)
		if over := g.transport(4); over == "shm" {
			t.Errorf("it goes over %s", over)
		}
		if err := g.sender.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if s := g.receiver.Stats(); g.mapTries != 2 || s.Mappings != 0 {
			t.Errorf("%d tries, stats %+v", g.mapTries, s)
		}
	})
}
