package kvtransfer_test

import (
	"errors"
	"testing"
	"testing/synctest"
)

// A sender that was given the pages and cannot map them sends over the session's streams.
func TestSenderCannotMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.mapped, c.sender.Streams = true, 3 })
		g.mapError = errors.New("cannot allocate memory")
		for i := range 2 {
			source, target := blockRange(4*i, 4), blockRange(32+4*i, 4)
			ticket, o := g.reserve(target, 0, 4)
			tr := g.open(ticket)
			sendAll(tr, source, 0, 4)
			tr.Commit(nil)
			wait(t, "done", tr.Done())
			wait(t, "committed", o.over)
			if tr.Err() != nil || !o.committed {
				t.Errorf("transfer %d: %v at the sender, %v at the receiver", i, tr.Err(), o.err)
			}
			g.checkPages(source, target)
		}
		if s := g.receiver.Stats(); s.Streams != 3 || s.Mappings != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}
