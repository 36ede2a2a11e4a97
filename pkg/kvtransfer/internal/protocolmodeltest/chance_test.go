package protocolmodeltest_test

import (
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// chance draws the events of a world.
type chance struct {
	*world
	rapid *rapid.T
	// faults allows events that a healthy cluster does not see.
	faults bool
}

func newChance(t *rapid.T, faults bool) *chance {
	c := &chance{world: newWorld(t), rapid: t, faults: faults}
	c.start()
	return c
}

// draw returns a number below n. Rapid prefers small and extreme numbers, which would fill
// every history with faults, so its output is mixed.
func (c *chance) draw(label string, n int) int {
	x := rapid.Uint64().Draw(c.rapid, label)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

func (c *chance) rarely() bool { return c.draw("rarely", 40) == 0 }

// fault rarely returns true, and never without faults.
func (c *chance) fault() bool { return c.faults && c.rarely() }

// do applies an event. Bytes that it cut off may be torn at any point.
func (c *chance) do(e event) {
	c.world.do(e)
	for i, s := range c.sessions {
		for j, st := range s.stripes {
			if st.loose && len(st.up)+len(st.down) > 0 {
				c.world.do(tear{i, j, c.draw("up", len(st.up)+1), c.draw("down", len(st.down)+1)})
			}
		}
	}
}

// oneOf applies one of the events, if there are any.
func (c *chance) oneOf(label string, all []event) {
	if len(all) > 0 {
		c.do(all[c.draw(label, len(all))])
	}
}

// anywhere applies an event at a stripe where it is possible.
func (c *chance) anywhere(label string, what func(place) event) {
	var able []event
	for i, s := range c.sessions {
		for j := range s.stripes {
			if e := what(place{i, j}); e.may(c.world) {
				able = append(able, e)
			}
		}
	}
	c.oneOf(label, able)
}

// anyTransfer applies an event to a sender's transfer for which it is possible.
func (c *chance) anyTransfer(label string, what func(session int, id uint64) event) {
	var able []event
	for i, s := range c.sessions {
		for id := uint64(1); id <= c.lastID; id++ {
			if s.transfers[id] == nil {
				continue
			}
			if e := what(i, id); e.may(c.world) {
				able = append(able, e)
			}
		}
	}
	c.oneOf(label, able)
}

// step draws one event. Without faults, only those of a healthy cluster, and time passes
// only when the network is idle.
func (c *chance) step() {
	op := c.draw("op", 100)
	switch {
	case op < 3:
		c.connect()
	case op < 4:
		c.attach()
	case op < 10:
		c.reserve()
	case op < 17:
		c.open()
	case op < 32:
		layer := c.draw("layer", layers)
		c.anyTransfer("offer", func(session int, id uint64) event { return offer{session, id, layer, c.count(session, id, layer)} })
	case op < 39:
		forgets := c.fault()
		c.anyTransfer("commit", func(session int, id uint64) event { return commit{session, id, forgets} })
	case op < 51:
		c.anywhere("write", func(p place) event { return write(p) })
	case op < 58:
		fails := c.fault()
		c.anywhere("ship", func(p place) event { return ship{p.session, p.stripe, fails} })
	case op < 64:
		c.anywhere("read", func(p place) event { return read(p) })
	case op < 75:
		c.anywhere("up", func(p place) event { return up(p) })
	case op < 82:
		c.anywhere("down", func(p place) event { return down(p) })
	case op < 89:
		if len(c.copies) > 0 {
			c.do(land{c.draw("copy", len(c.copies)), c.fault()})
		}
	case c.faults:
		c.wrong(op)
	case c.rarely():
		c.do(pass{})
	}
}

// count draws how many slices to offer; 0: none are left.
func (c *chance) count(session int, id uint64, layer int) int {
	o := c.sessions[session].transfers[id]
	if rest := int(o.ticket.GetBlocks()) - o.offered[layer]; rest > 0 {
		return 1 + c.draw("count", rest)
	}
	return 0
}

// wrong draws one event that a healthy cluster does not see.
func (c *chance) wrong(op int) {
	switch {
	case op < 91:
		c.anyTransfer("abort", func(session int, id uint64) event { return abort{session, id} })
	case op < 92:
		var able []event
		for id := uint64(1); id <= c.lastID; id++ {
			if e := (cancel{id}); e.may(c.world) {
				able = append(able, e)
			}
		}
		c.oneOf("cancel", able)
	case op < 95:
		c.do(advance{time.Duration(1 + c.draw("time", int(lease/2)))})
	case op < 96:
		c.anywhere("cut", func(p place) event { return cut(p) })
	case op < 97:
		c.anywhere("the sender hears", func(p place) event { return senderHears{p.session} })
	case op < 98:
		c.anywhere("the receiver hears", func(p place) event { return receiverHears(p) })
	case op < 99:
		if c.rarely() {
			c.spoil()
			return
		}
		c.anywhere("unmap", func(p place) event { return unmap{p.session} })
		c.anywhere("the receiver hears of it", func(p place) event { return hearUnmap{p.session} })
	case c.rarely():
		c.calamity()
	}
}

// spoil flips a bit in flight.
func (c *chance) spoil() {
	if c.draw("direction", 4) == 0 {
		c.flip(true, func([]byte) bool { return true })
		return
	}
	// Only chunks and Commit are covered by a checksum.
	summed := c.draw("of a chunk or commit", 8) > 0
	c.flip(false, func(m []byte) bool { return !summed || isChunk(m) || isCommit(m) })
}

// flip flips a bit of a message selected by wanted, and reports whether there was one.
func (c *chance) flip(down bool, wanted func([]byte) bool) bool {
	var able []flip
	var sizes []int
	for i, s := range c.sessions {
		for j := range s.stripes {
			e := flip{session: i, stripe: j, down: down}
			for k, m := range messages(e.queue(c.world)) {
				if e.message = k; len(m) > 0 && wanted(m) {
					able, sizes = append(able, e), append(sizes, 8*len(m))
				}
			}
		}
	}
	if len(able) == 0 {
		return false
	}
	i := c.draw("message", len(able))
	able[i].bit = c.draw("bit", sizes[i])
	c.do(able[i])
	return true
}

func (c *chance) calamity() {
	switch c.draw("calamity", 3) {
	case 0:
		c.start()
	case 1:
		c.anywhere("die", func(p place) event { return die{p.session} })
	case 2:
		c.do(shutdown{})
	}
}

func (c *chance) start() {
	e := start{encoded: c.draw("encoding", 2) == 0, views: c.draw("views", 2) == 0, lends: c.draw("lends", 2) == 0}
	e.shares = e.views && c.draw("shares", 4) > 0
	c.do(e)
}

// attach has a sender map the pages. With faults, its ticket may be forged.
func (c *chance) attach() {
	e := attach{}
	if c.fault() {
		e.forged = wrongSecret
	}
	var able []event
	for e.session = range c.sessions {
		for e.id = 1; e.id <= c.lastID; e.id++ {
			if e.may(c.world) {
				able = append(able, e)
			}
		}
	}
	c.oneOf("attach", able)
	if c.draw("mapping fails", 4) == 0 {
		c.anywhere("unmap", func(p place) event { return unmap{p.session} })
		c.anywhere("the receiver hears of it", func(p place) event { return hearUnmap{p.session} })
	}
}

// connect begins a session. With faults, one of its streams may be missing or not fit.
func (c *chance) connect() {
	live := 0
	for _, s := range c.sessions {
		if !s.gone {
			live++
		}
	}
	if live >= 2 {
		return
	}
	e := connect{stripes: 1 + c.draw("stripes", 3)}
	if c.fault() {
		e.odd, e.as = 1+c.draw("odd", e.stripes), c.draw("as", 10)
	}
	c.do(e)
	if c.fault() {
		c.do(cut{len(c.sessions) - 1, c.draw("cut", e.stripes)})
	}
}

func (c *chance) reserve() {
	var free []kvcache.BlockID
	for b, owner := range c.owner {
		if owner == 0 {
			free = append(free, kvcache.BlockID(b))
		}
	}
	if n := c.draw("blocks", 8); n <= len(free) {
		free = rapid.Permutation(free).Draw(c.rapid, "free")
		c.do(reserve{free[:n], c.draw("held", n+1)})
	}
}

// open opens a transfer. With faults, the ticket may be used already or have a wrong secret
// or epoch.
func (c *chance) open() {
	e := open{again: c.fault(), descending: c.draw("order", 2) == 0, encoded: c.draw("encode", 2) == 0}
	e.encoded = e.encoded && c.encoding == kvtransferv1.Encoding_ENCODING_INT8
	e.lent = c.lends && c.draw("lend", 4) > 0
	share := c.shares && c.draw("share", 4) > 0
	if c.fault() {
		e.forged = forgery(1 + c.draw("forge", 2))
	}
	var able []event
	for e.session = range c.sessions {
		of := e
		of.shared = share && c.sessions[e.session].mapping == mapped
		of.lent, of.encoded = of.lent && !of.shared, of.encoded && !of.shared
		for of.id = 1; of.id <= c.lastID; of.id++ {
			if of.may(c.world) {
				able = append(able, of)
			}
		}
	}
	c.oneOf("open", able)
}
