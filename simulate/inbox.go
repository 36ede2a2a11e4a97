package simulate

// inbox has the events of a core that handles one at a time: what its own actions lead to
// comes after them.
type inbox[E any] struct {
	waiting []E
	taken   int // of those
	busy    bool
}

// put adds an event. It reports whether the caller is to begin: to handle what next gives
// until there is no more.
func (b *inbox[E]) put(event E) (begin bool) {
	b.waiting = append(b.waiting, event)
	return b.begin()
}

// begin has events wait until next has given the last one. It reports whether they did not
// before.
func (b *inbox[E]) begin() bool {
	before := b.busy
	b.busy = true
	return !before
}

// more reports that events wait.
func (b *inbox[E]) more() bool { return b.taken < len(b.waiting) }

// next takes the oldest event out. There are none while another one is handled elsewhere.
func (b *inbox[E]) next() (event E, more bool) {
	if b.more() {
		event = b.waiting[b.taken]
		b.taken++
		return event, true
	}
	clear(b.waiting)
	b.waiting, b.taken, b.busy = b.waiting[:0], 0, false
	return event, false
}
