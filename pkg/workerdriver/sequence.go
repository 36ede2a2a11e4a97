package workerdriver

import (
	"sync"

	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Sequence is one sequence as its owner sees it. Its actions are kept until they are taken:
// their number is bounded by the tokens that it may generate.
//
// Preempted, as a Sequence of Driver.Submit gives it, says that nothing comes of it until
// others have ended. A sequence that keeps its blocks and waits for one more gives it too;
// then no Resumed follows, but the next token or the end.
type Sequence struct {
	id      scheduler.SequenceID
	restore bool
	bare    bool // of Submit
	driver  *Driver
	notify  chan struct{}

	preempted bool // and not yet started again; under the driver's lock

	mu      sync.Mutex
	pending actions // since the last Take
	taken   actions // by that
}

// clearPreempted says whether the sequence was preempted until now, when it runs.
func (s *Sequence) clearPreempted() (was bool) {
	was, s.preempted = s.preempted, false
	return was
}

// actions are some of a sequence, in memory of its own.
type actions struct {
	list  []worker.Action
	drawn []scheduler.Sampled // those of list
}

// Cancel ends a sequence of Driver.Submit, whatever it does. It may be called any number of
// times, also after the end.
func (s *Sequence) Cancel() { s.driver.handle(scheduler.Cancel{ID: s.id}) }

// Ready receives when there may be actions to take. The last action of a sequence
// is Refused or Finished, or End.
func (s *Sequence) Ready() <-chan struct{} { return s.notify }

// Take returns the actions since the last call, oldest first. It does not wait. The
// slice, and what each *scheduler.Sampled in it points to, are used again by the next
// call.
func (s *Sequence) Take() []worker.Action {
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
func (s *Sequence) put(action worker.Action) {
	s.mu.Lock()
	if pauses(action) {
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

// pauses and resumes say what an action tells of a sequence.
func pauses(action worker.Action) bool {
	switch a := action.(type) {
	case scheduler.Preempted:
		return true
	case worker.SendDecode:
		return a.Event.GetPaused() != nil
	}
	return false
}

func resumes(action worker.Action) bool {
	switch a := action.(type) {
	case scheduler.Resumed:
		return true
	case worker.SendDecode:
		return a.Event.GetResumed() != nil
	}
	return false
}

// beforePause is what is worth saying before a pause: not that the sequence was preempted
// before, nor that it had resumed, if nothing came of it in between. So there are no more
// pauses than tokens.
func beforePause(pending []worker.Action) []worker.Action {
	n := len(pending)
	for n > 0 && (pauses(pending[n-1]) || resumes(pending[n-1])) {
		n--
	}
	return pending[:n]
}
