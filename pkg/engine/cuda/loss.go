package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// loss is whether an engine's device was lost. The engine's steps, its pages and whoever watches
// the device report it here. It is safe for concurrent use.
type loss struct {
	noticed chan struct{} // closed when it was
	once    sync.Once
	cause   error // written before noticed is closed
}

func newLoss() *loss { return &loss{noticed: make(chan struct{})} }

// after waits until the device has done all that is on a stream, and returns err. It adds
// engine.ErrDeviceLost if the device is lost: err or the error of the wait says so, or the wait
// fails for any reason but too little memory.
func (l *loss) after(err error, stream *driver.Stream) error {
	wait := stream.Synchronize()
	var failed *driver.Error
	if !lost(err) && wait != nil {
		err = errors.Join(err, wait)
	}
	if !lost(err) && (!errors.As(wait, &failed) || failed.OutOfMemory()) {
		return err
	}
	err = fmt.Errorf("%w: %w", engine.ErrDeviceLost, err)
	l.notice(err)
	return err
}

// notice remembers the first cause, which is an engine.ErrDeviceLost.
func (l *loss) notice(cause error) {
	l.once.Do(func() {
		l.cause = cause
		close(l.noticed)
	})
}

// err is why the device is lost, nil if it is not.
func (l *loss) err() error {
	select {
	case <-l.noticed:
		return l.cause
	default:
		return nil
	}
}

// lost says whether one of the errors in err is of a context that is of no more use.
func lost(err error) bool {
	var one *driver.Error
	if errors.As(err, &one) && one.Sticky() {
		return true
	}
	var several interface{ Unwrap() []error }
	return errors.As(err, &several) && slices.ContainsFunc(several.Unwrap(), lost)
}
