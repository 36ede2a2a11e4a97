package engine

import (
	"context"
	"errors"
	"os"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// What follows are interfaces that an Engine or its Pages may have besides. Ask for one of an Engine
// with As.

// Wrapper is an Engine around another one that computes its steps.
type Wrapper interface {
	// Wrapped is the other one.
	Wrapped() Engine
}

// As is the engine as a T, or the first of those that it wraps that is one.
func As[T any](e Engine) (as T, is bool) {
	for {
		if as, is = e.(T); is {
			return as, true
		}
		w, wraps := e.(Wrapper)
		if !wraps {
			return as, false
		}
		e = w.Wrapped()
	}
}

// TurnTaker is an Engine that computes in turns with others.
type TurnTaker interface {
	// Hold waits for a turn and keeps it until release, which the caller calls once: steps with
	// the returned context, of all engines that take turns with this one, do not wait for a turn.
	// One goroutine at a time uses the context for steps. An error is ctx's.
	Hold(ctx context.Context) (held context.Context, release func(), err error)
}

// LossNotifier is an Engine that can say that its device is lost, also when no Step runs.
type LossNotifier interface {
	// Lost is closed once the device is lost. Every Step fails from then on.
	Lost() <-chan struct{}
}

// AsyncStepper is an Engine whose steps go on by themselves once the device has been given
// them, so that the caller can do something else meanwhile. One goroutine at a time calls
// Start, Wait and Step.
type AsyncStepper interface {
	// Start begins what Step does with a batch whose LayerDone and LayersDone are nil, and
	// does not wait for the device, not even for one that fails: Wait tells of that. An error
	// is Step's, and there is nothing to wait for.
	// The batch stays as it is until Wait. Between Start and Wait there is no other Start
	// or Step, and Close waits for Wait.
	Start(ctx context.Context, batch Batch) error
	// Wait gives what Step would have given. It is called once after each Start without an
	// error, and takes as long as the device does, whatever became of the context.
	Wait() (Output, error)
}

// Limited is what an engine implements that knows what its device can reach.
type Limited interface {
	// Limits are what was measured or given; zero: not known. It is safe for
	// concurrent use.
	Limits() latency.Limits
}

// Checking is what an engine implements that knows the numbers in its pages.
type Checking interface {
	// NotFinite is the first of the first n tokens of a slice whose keys or values are
	// infinite or NaN; n if those of all are finite. It is safe for concurrent use.
	NotFinite(slice []byte, n int) int
}

// Staging is implemented by Pages that lend staging buffers: host memory that the device
// itself copies to and from. A Read into such a buffer, or a Write from one, needs no copy by
// the processor. Buffers are few: borrow one only for data that is soon sent or written.
type Staging interface {
	// Stage lends a buffer of at least the given size, with unknown contents. It does not
	// wait: if no buffer is free or large enough, it returns nil, and the caller uses its own
	// memory. The caller calls release once, when nothing uses the memory any more, even after
	// the engine was closed. Keep release for as long as the memory: a lost buffer returns
	// when release is garbage-collected. Safe for concurrent use.
	Stage(bytes int) (memory []byte, release func())
}

// Sharing is Pages in the host's memory that other processes of this host can map. Its methods
// are safe for concurrent use.
type Sharing interface {
	// Shares reports whether they can: File is not nil as long as the pages are open.
	Shares() bool
	// File holds the pages from its start, block after block, the slices of all layers of a
	// block side by side. Its size cannot change. Whoever maps it can read and write every
	// page. The pages own it; nil after they were closed.
	File() *os.File
}

// ErrNotLent says that nothing is lent under a number: it was taken before, or recalled,
// or never lent.
var ErrNotLent = errors.New("no lent pages have this number")

// Lending is Pages whose slices can be copied straight to Pages in the same memory, by
// whoever is told their number. Its methods are safe for concurrent use.
type Lending interface {
	// Memory is a random number that stands for a memory of one process. Pages that give
	// the same one can take from each other; those that give 0 neither lend nor take.
	Memory() uint64
	// Lend lets Pages of the same Memory take the slices of blocks, once. It copies
	// nothing. ended is called once, with no lock held, when the slices will not be read
	// for the loan any more: after they were taken, or by Recall. It must not block. Until
	// then nobody changes the slices or blocks. After an error nothing is lent.
	Lend(layer int, blocks []kvcache.BlockID, ended func()) (loan uint64, err error)
	// Recall ends a loan that nobody takes. One that is being taken ends with that.
	Recall(loan uint64)
	// Take copies what Pages of the same Memory have lent into the slices of blocks, in
	// order: as many slices, of the same layer and layout. Whatever its error, the loan is
	// over afterwards; ErrNotLent says that there was none.
	Take(loan uint64, layer int, blocks []kvcache.BlockID) error
}
