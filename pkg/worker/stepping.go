package worker

import "github.com/tandem-serving/tandem/pkg/scheduler"

// stepping finds sequences that decode and are left out of a step, since the scheduler has
// no block for their next token.
type stepping struct {
	number       uint64      // of the step that is in flight, or is the next
	now, last    []*sequence // in that step, and in the one before
	next         int         // where in last the next one to look for is likely to be
	prefetchSink uint64      // see package kvcache
}

// sequence finds a sequence of the last step. Those are asked for in about the order of that
// step, so that hardly any look-up is needed.
func (p *stepping) sequence(w *Worker, id scheduler.SequenceID) *sequence {
	for i := p.next; i < min(p.next+4, len(p.last)); i++ {
		if q := p.last[i]; q.id == id {
			p.next = i + 1
			return q
		}
	}
	return w.sequences[id]
}

// add takes in a sequence of the step that begins.
func (p *stepping) add(q *sequence, part scheduler.Part) {
	q.step, q.decoding = p.number, !part.Prompt
	p.now = append(p.now, q)
}

// ended says that the step in flight has ended.
func (p *stepping) ended() {
	p.number++
	p.next = 0
	p.now, p.last = p.last[:0], p.now
	for _, q := range p.last { // a processor waits for all of them at a time
		p.prefetchSink += uint64(q.id)
	}
}

// stalls tells each sequence that decoded in the last step, has not ended and is not in this
// one. It is called once the scheduler has taken in the end of that step.
func (p *stepping) stalls(w *Worker) {
	for _, q := range p.last {
		switch {
		case !q.decoding || q.step == p.number:
		case q.owner == nil:
			w.act(Stalled{q.id})
		default:
			q.owner.stalled(w)
		}
	}
	clear(p.last)
	p.last = p.last[:0]
}
