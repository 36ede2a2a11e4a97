package protocolmodeltest_test

import "github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"

// Faults, the passing of time, and the last events.

func (e advance) may(*world) bool { return true }
func (e advance) happen(w *world) { w.advance(e.by) }

func (e pass) may(*world) bool { return true }
func (e pass) happen(w *world) {
	for range 6 {
		w.run()
		w.advance(lease / 3)
		w.run()
	}
}

func (e cut) may(w *world) bool {
	_, st := w.at(place(e))
	return !st.cut
}

func (e cut) happen(w *world) {
	_, st := w.at(place(e))
	st.cut, st.loose = true, true
}

func (e tear) may(w *world) bool {
	_, st := w.at(place{e.session, e.stripe})
	return st.loose && e.up <= len(st.up) && e.down <= len(st.down)
}

func (e tear) happen(w *world) {
	_, st := w.at(place{e.session, e.stripe})
	st.up, st.down, st.loose = st.up[:e.up], st.down[:e.down], false
}

// queue returns the bytes in flight in one direction, if they will be read.
func (e flip) queue(w *world) []byte {
	s, st := w.at(place{e.session, e.stripe})
	switch {
	case e.down && !s.gone:
		return st.down
	case !e.down && !st.targetGone:
		return st.up
	}
	return nil
}

func (e flip) may(w *world) bool {
	all := messages(e.queue(w))
	return e.message < len(all) && e.bit < 8*len(all[e.message])
}

func (e flip) happen(w *world) {
	messages(e.queue(w))[e.message][e.bit/8] ^= 1 << (e.bit % 8)
	s := w.sessions[e.session]
	s.spoilt, s.lied = true, s.lied || e.down
}

func (e senderHears) may(w *world) bool {
	s := w.sessions[e.session]
	return !s.gone && s.broken()
}
func (e senderHears) happen(w *world) { w.loseSender(w.sessions[e.session]) }

func (e receiverHears) may(w *world) bool {
	s, st := w.at(place(e))
	return !st.targetGone && (st.cut || st.closing || s.gone)
}

func (e receiverHears) happen(w *world) {
	_, st := w.at(place(e))
	w.loseTarget(st)
}

func (e die) may(w *world) bool { return !w.sessions[e.session].gone }
func (e die) happen(w *world) {
	s := w.sessions[e.session]
	s.leave()
	s.core = nil
	w.forgetLoans(s)
	for _, st := range s.stripes {
		st.cut, st.writing, st.unread = true, nil, nil
	}
	if s.mapping == mapped {
		s.mapping = untold
	}
}

func (e shutdown) may(*world) bool { return true }
func (e shutdown) happen(w *world) {
	w.closed = true
	w.toReceiver(receiver.Shutdown{})
}

func (e quiesce) may(*world) bool  { return true }
func (e quiesce) happen(w *world)  { w.quiesce() }
func (e blackout) may(*world) bool { return true }
func (e blackout) happen(w *world) { w.blackout() }
