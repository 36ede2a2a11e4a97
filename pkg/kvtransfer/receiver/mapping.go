package receiver

import "fmt"

// mapPages lets the sender of a session map the pages, if it has a ticket that it could
// open, or has open.
// There are at most MaxStreams mappings. A sender that has one which keeps blocks in
// quarantine, as an ended process does for a moment, gets no other meanwhile: so what a sender
// that does not unmap can hold is what it held when its session ended.
func (c *Core) mapPages(ev Map) {
	s, t := c.streams[ev.Stream], c.transfers[ev.ID]
	why := ""
	switch {
	case !c.cfg.Shares:
		why = "the receiver does not share its pages"
	case c.closed:
		why = "the receiver shuts down"
	case s == nil || s.session == nil || s.session.phase != ready:
		why = "the session is not open"
	case s.session.mapped:
		why = "the session has mapped the pages already"
	case len(c.mappings) >= c.cfg.MaxStreams:
		why = fmt.Sprintf("%d sessions have mapped the pages already", len(c.mappings))
	case t == nil || t.secret != ev.Secret || t.session != s.session && (t.state != reserved || !mayOpen(t, s)):
		why = "the ticket is not one that this session could open or has open"
	case c.strands(s.session.sender):
		why = "an ended session of this sender still has the pages mapped, and keeps blocks in quarantine"
	}
	if why != "" {
		c.emit(MayNotMap{Stream: ev.Stream, Why: why})
		return
	}
	s.session.mapped = true
	c.mappings[ev.Stream] = s.session
	c.emit(MayMap{Stream: ev.Stream})
}

// strands reports whether an ended session of a sender keeps blocks by its mapping.
func (c *Core) strands(sender string) bool {
	for _, of := range c.mappings {
		if of.sender == sender && of.left == 0 && len(of.transfers) > 0 {
			return true
		}
	}
	return false
}

// unmap processes the end of a mapping. It ends a session that has used the mapping: its sender
// relies on it. Any other goes on over the socket, as one does whose sender could not map what it
// was given.
func (c *Core) unmap(id StreamID) {
	of := c.mappings[id]
	if of == nil {
		return
	}
	delete(c.mappings, id)
	of.mapped = false
	if of.writesShared {
		c.breakSession(of, "the sender has unmapped the pages")
	}
	c.release(of)
}

// mayOpen reports whether a ticket is one for the sender of a stream.
func mayOpen(t *transfer, s *stream) bool {
	return t.sender == s.session.sender || t.sender == "" && !s.verified
}
