package mesh

import (
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// stuckGrace is what closing a process may take once its services have stopped, after its
// GPU was lost.
const stuckGrace = 15 * time.Second

// stuckAfter is how long the process may take to end once the GPU is lost.
func (p *process) stuckAfter() time.Duration { return p.options.StopTimeout + stuckGrace }

// stuck ends a process that cannot end by itself: a call of a driver whose device is gone
// may never return.
type stuck struct {
	given chan error
	ended chan struct{} // closed when there is nothing to end any more
}

// unlessStuck runs f, and leaves it behind when a time of s.within is over.
func unlessStuck(f func(s *stuck) error) error {
	s := &stuck{given: make(chan error, 1), ended: make(chan struct{})}
	defer close(s.ended)
	ended := make(chan error, 1)
	go func() { ended <- f(s) }()
	select {
	case err := <-ended:
		return err
	case err := <-s.given:
		return err
	}
}

// within makes unlessStuck return err unless f returns in time.
func (s *stuck) within(most time.Duration, err error) {
	time.AfterFunc(most, func() {
		select {
		case s.given <- err:
		default: // one is enough
		}
	})
}

// endWhenLost calls within when an engine's device is lost, however that was noticed, until freed is
// closed; nil: it never is.
func (s *stuck) endWhenLost(made engine.LossNotifier, most time.Duration, freed <-chan struct{}) {
	go func() {
		select {
		case <-made.Lost():
			s.within(most, fmt.Errorf("%w: a call to its driver hangs", engine.ErrDeviceLost))
		case <-freed:
		case <-s.ended:
		}
	}()
}
