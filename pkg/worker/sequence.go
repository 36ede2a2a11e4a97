package worker

import (
	"sync"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Sequence is one submitted request. Its actions are kept until they are taken:
// their number is bounded by the tokens that it may generate.
//
// Preempted, as a Sequence gives it, says that nothing comes of it until others have
// ended. A sequence that keeps its blocks and waits for one more gives it too; then no
// Resumed follows, but the next token or the end.
type Sequence struct {
	id      scheduler.SequenceID
	restore bool
	prompt  []int32
	driver  *Driver
	notify  chan struct{}

	// Under the driver's lock:
	preempted bool   // and not yet started again
	decoding  bool   // every step computes a token of it, unless it lacks a block
	step      uint64 // the last that it was in

	mu      sync.Mutex
	pending actions // since the last Take
	taken   actions // by that
}

// actions are some of a sequence, in memory of its own.
type actions struct {
	list  []scheduler.Action
	drawn []scheduler.Sampled // those of list
}

// ID is the sequence's id.
func (s *Sequence) ID() scheduler.SequenceID { return s.id }

// Cancel ends the sequence, whatever it does. It may be called any number of
// times, also after the end.
func (s *Sequence) Cancel() { s.driver.handle(scheduler.Cancel{ID: s.id}) }

// Ready receives when there may be actions to take. The last action of a sequence
// is Refused or Finished.
func (s *Sequence) Ready() <-chan struct{} { return s.notify }

// Take returns the actions since the last call, oldest first. It does not wait. The
// slice, and what each *scheduler.Sampled in it points to, are used again by the next
// call.
func (s *Sequence) Take() []scheduler.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken.clear()
	s.pending, s.taken = s.taken, s.pending
	return s.taken.list
}

// clear forgets the actions and keeps the memory.
func (a *actions) clear() {
	clear(a.list)
	clear(a.drawn) // their Logprobs
	a.list, a.drawn = a.list[:0], a.drawn[:0]
}

// put adds an action, but for a *scheduler.Sampled.
func (s *Sequence) put(action scheduler.Action) {
	s.mu.Lock()
	if _, is := action.(scheduler.Preempted); is {
		s.pending.list = beforePause(s.pending.list)
	}
	s.pending.list = append(s.pending.list, action)
	s.mu.Unlock()
	s.ready()
}

// putToken adds a token, which it copies.
func (s *Sequence) putToken(token *scheduler.Sampled) {
	s.mu.Lock()
	// If this moves the slice, pointers into the old one stay valid.
	s.pending.drawn = append(s.pending.drawn, *token)
	s.pending.list = append(s.pending.list, &s.pending.drawn[len(s.pending.drawn)-1])
	s.mu.Unlock()
	s.ready()
}

func (s *Sequence) ready() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// beforePause is what is worth saying before a Preempted: not that the sequence was
// preempted before, nor that it had resumed, if nothing came of it in between. So
// there are no more pauses than tokens.
func beforePause(pending []scheduler.Action) []scheduler.Action {
	for n := len(pending); n > 0; n-- {
		switch pending[n-1].(type) {
		case scheduler.Preempted, scheduler.Resumed:
		default:
			return pending[:n]
		}
	}
	return pending[:0]
}

// stepping finds sequences that decode and are left out of a step, since the scheduler has
// no block for their next token. It is under the driver's lock.
type stepping struct {
	number    uint64      // of the step that is in flight, or is the next
	now, last []*Sequence // in that step, and in the one before
}

// add takes in a sequence of the step that begins.
func (p *stepping) add(s *Sequence, part scheduler.Part) {
	if s == nil {
		return
	}
	s.step, s.decoding = p.number, !part.Prompt
	p.now = append(p.now, s)
}

// ended says that the step in flight has ended.
func (p *stepping) ended() {
	p.number++
	p.now, p.last = p.last[:0], p.now
}

// stalls gives Preempted to each sequence that decoded in the last step, has not ended and
// is not in this one. It is called once the scheduler has taken in the end of that step.
func (p *stepping) stalls() {
	for _, s := range p.last {
		if s.decoding && s.step != p.number {
			s.put(scheduler.Preempted{ID: s.id})
		}
	}
	clear(p.last)
}
