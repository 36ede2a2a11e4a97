package simulate

import "time"

// host is a machine on the network. Its processes share its way out and its way in.
type host struct {
	name    string
	out, in line
	cut     map[*host]bool // it is partitioned from these
	// cutNumber is the number of the last partition from each.
	cutNumber map[*host]int
}

// line carries one message after the other.
type line struct {
	bytesPerSecond float64 // 0: without limit
	freeAt         time.Time
}

// carry is when a message that is there at now is over.
func (w *line) carry(now time.Time, bytes int) time.Time {
	if w.bytesPerSecond <= 0 {
		return now
	}
	if w.freeAt.Before(now) {
		w.freeAt = now
	}
	w.freeAt = w.freeAt.Add(time.Duration(float64(bytes) / w.bytesPerSecond * float64(time.Second)))
	return w.freeAt
}

// pipe carries messages between two processes in one direction, in order, until it is
// broken.
type pipe struct {
	cluster  *Cluster
	from, to *host
	path     *path
	last     time.Time
	broken   bool
	held     []event // what a partition holds, oldest first

	// What is under way, oldest first, from number gone on: the first of them is in the
	// clock's heap.
	messages []message
	gone     int
}

// message is something that arrives.
type message struct {
	moment
	event event
}

func (c *Cluster) newPipe(from, to *host) *pipe {
	return &pipe{cluster: c, from: from, to: to, path: c.pathOf(from, to)}
}

// send delivers a message of so many bytes. It returns when the sender's own way out is free
// again.
func (p *pipe) send(bytes int, deliver func()) (free time.Time) { return p.post(bytes, later(deliver)) }

// post is send of an event.
func (p *pipe) post(bytes int, e event) (free time.Time) {
	now := p.cluster.now
	if p.broken {
		return now
	}
	at := now
	free = now
	if p.from != p.to {
		at = p.from.out.carry(at, bytes)
		free = at
		for _, w := range p.path.lines {
			at = w.carry(at, bytes)
		}
		at = p.to.in.carry(at, bytes)
	}
	at = at.Add(p.path.latency)
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	m := message{p.cluster.moment(at), e}
	if p.messages = append(p.messages, m); len(p.messages) == p.gone+1 {
		p.cluster.push(m.moment, p)
	}
	return free
}

// next takes the first message out.
func (p *pipe) next() event {
	e := p.messages[p.gone].event
	p.messages[p.gone].event = nil
	if p.gone++; p.gone == len(p.messages) {
		p.messages, p.gone = p.messages[:0], 0
	} else if p.gone >= 64 && 2*p.gone >= len(p.messages) {
		n := copy(p.messages, p.messages[p.gone:])
		clear(p.messages[n:])
		p.messages, p.gone = p.messages[:n], 0
	}
	return e
}

// due is when the first message arrives, if there is one.
func (p *pipe) due() (moment, bool) {
	if p.gone == len(p.messages) {
		return moment{}, false
	}
	return p.messages[p.gone].moment, true
}

func (p *pipe) deliver(e event) {
	switch {
	case p.broken:
	case p.from.cut[p.to]:
		if p.held = append(p.held, e); len(p.held) == 1 {
			p.cluster.held = append(p.cluster.held, p)
		}
	default:
		e.happen()
	}
}

// happen is for the heap alone: the clock delivers what a pipe carries.
func (p *pipe) happen() {}
