package sender

import "time"

// Pace is what a session sent in a time.
type Pace struct {
	// Bytes are those of pages, however they are encoded.
	Bytes int64
	// Busy is for how long of the time there was something to send, or sent and not yet read by
	// the receiver: the time of computing what is to be sent is not in it.
	Busy time.Duration
}

// pace is the pace of a session since it began.
type pace struct {
	Pace
	at   time.Time // until when Busy is counted
	busy bool      // since then
}

// until counts the time up to now.
func (p *pace) until(now time.Time) {
	if p.busy {
		p.Busy += now.Sub(p.at)
	}
	p.at = now
}

// busy reports whether there is something to send, or that the receiver has not read.
func (c *Core) busy() bool {
	for i := range c.stripes {
		if c.stripes[i].credit < c.stripes[i].most {
			return true
		}
	}
	return len(c.ring) > 0
}

// since is the pace since another one of the same session.
func (p Pace) since(o Pace) Pace { return Pace{Bytes: p.Bytes - o.Bytes, Busy: p.Busy - o.Busy} }
