package simulate

import "time"

// host is a machine on the network. Its processes share its way out and its way in.
type host struct {
	name    string
	number  int
	paths   []*path // to others, by their numbers; nil: not needed yet
	out, in line
	cut     map[*host]bool // it is partitioned from these
	// cutNumber is the number of the last partition from each.
	cutNumber map[*host]int
}

// line carries one message after the other.
type line struct {
	bytesPerSecond float64 // 0: without limit
	freeAt         int64   // times are as those of moments
}

// carry is when a message that comes at some time begins to pass, and when it has passed.
func (w *line) carry(at int64, bytes int) (begin, end int64) {
	if w.bytesPerSecond <= 0 {
		return at, at
	}
	begin = max(at, w.freeAt)
	w.freeAt = begin + int64(float64(bytes)/w.bytesPerSecond*float64(time.Second))
	return begin, w.freeAt
}

// pipe carries messages between two processes in one direction, in order, until it is
// broken.
type pipe struct {
	cluster  *Cluster
	from, to *host
	path     *path
	last     int64 // arrival
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
func (p *pipe) send(bytes int, deliver func()) (free int64) { return p.post(bytes, later(deliver)) }

// post is send of an event.
func (p *pipe) post(bytes int, e event) (free int64) {
	now := p.cluster.at
	switch {
	case p.broken:
		return now
	case p.from == p.to:
		p.arrive(now, e)
		return now
	}
	begin, end := p.from.out.carry(now, bytes)
	p.pass(0, begin, end, bytes, e)
	return end
}

// pass takes a message through the lines from number i on, which its first byte reaches at
// begin and its last at end or later. Each line is entered when it is reached, so that lines
// carry messages in the order in which they come.
func (p *pipe) pass(i int, begin, end int64, bytes int, e event) {
	for ; i < len(p.path.lines); i++ {
		if begin > p.cluster.at {
			p.passLater(i, begin, end, bytes, e)
			return
		}
		var passed int64
		begin, passed = p.path.lines[i].carry(begin, bytes)
		end = max(end, passed)
	}
	p.arrive(end, e)
}

// passLater is pass when the line is reached. It is a function of its own since what a closure
// holds is allocated, and most messages need none.
func (p *pipe) passLater(i int, begin, end int64, bytes int, e event) {
	c := p.cluster
	c.soon.push(c.momentAt(begin), later(func() {
		if !p.broken {
			p.pass(i, begin, end, bytes, e)
		}
	}))
}

// arrive plans the arrival of a message whose last byte has passed all lines by then.
func (p *pipe) arrive(passed int64, e event) {
	p.last = max(p.last, passed+int64(p.path.latency))
	m := message{p.cluster.momentAt(p.last), e}
	if p.messages = append(p.messages, m); len(p.messages) == p.gone+1 {
		p.cluster.soon.push(m.moment, p)
	}
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
	case p.cluster.cuts > 0 && p.from.cut[p.to]:
		if p.held = append(p.held, e); len(p.held) == 1 {
			p.cluster.held = append(p.cluster.held, p)
		}
	default:
		e.happen()
	}
}

// happen is for the heap alone: the clock delivers what a pipe carries.
func (p *pipe) happen() {}
