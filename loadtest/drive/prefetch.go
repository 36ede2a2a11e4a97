package drive

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// prefetch keeps a source some requests ahead of its reader.
type prefetch struct {
	requests chan *workload.Request // closed at the end of the source
	quit     chan struct{}
	done     chan struct{}
	full     chan struct{} // closed once the source is ahead or has ended
	stop     func()        // closes quit
	wake     func()
	// starved: the reader found nothing and waits for wake.
	starved atomic.Bool

	err error // the source's error, valid once requests is closed
}

// newPrefetch starts to read the source. It calls wake when a request arrives for a
// starved reader.
func newPrefetch(source workload.Source, wake func()) *prefetch {
	p := &prefetch{
		requests: make(chan *workload.Request, prefetched),
		quit:     make(chan struct{}), done: make(chan struct{}), full: make(chan struct{}),
		wake: wake,
	}
	p.stop = sync.OnceFunc(func() { close(p.quit) })
	go p.run(source)
	return p
}

func (p *prefetch) run(source workload.Source) {
	defer close(p.done)
	defer p.wake()
	defer close(p.requests)
	isFull := sync.OnceFunc(func() { close(p.full) })
	defer isFull()
	for {
		select {
		case <-p.quit:
			return
		default:
		}
		q, err := source.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.err = err
			}
			return
		}
		select {
		case p.requests <- q:
		default:
			isFull()
			select {
			case p.requests <- q:
			case <-p.quit:
				return
			}
		}
		if p.starved.Swap(false) {
			p.wake()
		}
	}
}

// ahead waits until the source is ahead.
func (p *prefetch) ahead(ctx context.Context) {
	timer := time.NewTimer(prefetchTimeout)
	defer timer.Stop()
	select {
	case <-p.full:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// next returns the next request if one is ready; end: there are no more. If neither, wake
// is called later.
func (p *prefetch) next() (q *workload.Request, end bool) {
	for range 2 {
		select {
		case q, ok := <-p.requests:
			p.starved.Store(false)
			return q, !ok
		default:
		}
		// Check again: one may have arrived before this was set.
		p.starved.Store(true)
	}
	return nil, false
}

// close stops reading the source and waits for that.
func (p *prefetch) close() {
	p.stop()
	<-p.done
}
