package protocolmodeltest_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

// TestMain asks rapid for more than 100 histories: they are cheap, and rare ones matter.
// -rapid.checks overrides it.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "2000"); err != nil {
		panic(err)
	}
	m.Run()
}

// Whatever happens, no block is written late, every transfer ends once at both sides, and
// nothing is left once the network is quiet.
func TestAnythingMayHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChance(t, true)
		noisy := c.draw("noisy", 2) == 0
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			c.step()
			if noisy && c.draw("noise", 25) == 0 {
				c.spoil()
			}
		}
		if rapid.Bool().Draw(t, "blackout") {
			c.do(blackout{})
		} else {
			c.do(quiesce{})
		}
	})
}

// Without faults, everything the sender commits arrives.
func TestNothingGoesWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChance(t, false)
		c.healthy = true
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			c.step()
		}
		c.do(quiesce{})
		c.checkAllCommitted()
	})
}

// With a single bit flip in a chunk, no wrong data is reported as committed.
func TestOneBitFlips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChance(t, false)
		flipped := false
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			c.step()
			if !flipped && c.draw("flip", 10) == 0 {
				flipped = c.flip(false, isChunk)
			}
		}
		c.do(quiesce{})
	})
}

func (w *world) checkAllCommitted() {
	w.t.Helper()
	for _, s := range w.sessions {
		for id, o := range s.transfers {
			if o.result.End != sender.EndCommitted {
				w.fatalf("transfer %d ended with %+v; %s", id, o.result, w.describe())
			}
		}
	}
}
