package workerdriver

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Carrier carries out what a worker asks for a sequence. Follow calls it from one goroutine.
type Carrier interface {
	// Carry carries out an action; answers go to Driver.Handle. An error, a gRPC status, is of
	// a message that could not be sent.
	Carry(action worker.Action) error
	// Flush sends what Carry put together of several actions.
	Flush() error
}

// Follow has what the worker asks for a sequence of Generate or Prefill carried out until its
// end, which is the error: nil or a gRPC status. With the end of ctx, an error of the carrier
// or a panic of it the sequence is cancelled; nothing is sent of it any more, and all else is
// carried out to the end.
func (s *Sequence) Follow(ctx context.Context, to Carrier) error {
	f := follower{sequence: s, to: to}
	defer func() {
		if !f.over { // the carrier panics
			f.cancel(status.Error(codes.Internal, "the worker has a bug: see its log"))
			f.skip()
			_ = f.follow(context.WithoutCancel(ctx))
		}
	}()
	return f.follow(ctx)
}

// follower is a call of Follow.
type follower struct {
	sequence *Sequence
	to       Carrier
	left     []worker.Action // to carry out; the first is being carried out
	failed   error           // why nothing is sent any more; nil: it is
	over     bool
}

func (f *follower) follow(ctx context.Context) error {
	for {
		for len(f.left) > 0 {
			if end, is := f.left[0].(worker.End); is {
				f.flush()
				f.over = true
				if f.failed != nil {
					return f.failed
				}
				return end.Err
			}
			f.carry(f.left[0])
			f.left = f.left[1:]
		}
		f.flush()
		f.wait(ctx)
	}
}

// wait waits for actions, or for the end of ctx.
func (f *follower) wait(ctx context.Context) {
	gone := ctx.Done()
	if f.failed != nil {
		gone = nil
	}
	select {
	case <-f.sequence.Ready():
		f.left = f.sequence.Take()
	case <-gone:
		f.cancel(status.FromContextError(ctx.Err()).Err())
	}
}

// skip answers the action that the carrier failed to carry out as one that was refused.
// Where it was answered before, the worker ignores that.
func (f *follower) skip() {
	if len(f.left) == 0 {
		return
	}
	id, driver := f.sequence.id, f.sequence.driver
	switch f.left[0].(type) {
	case worker.ReserveKV:
		driver.Handle(id, worker.NotReserved{ID: id, Err: f.failed})
	case worker.OpenTransfer:
		driver.Handle(id, worker.NotOpened{ID: id, Err: f.failed})
	case worker.Fetch:
		driver.Handle(id, worker.Fetched{ID: id})
	case worker.End: // its flush failed
		return
	}
	f.left = f.left[1:]
}

func (f *follower) carry(action worker.Action) {
	if f.failed != nil && sends(action) {
		return
	}
	if err := f.to.Carry(action); err != nil {
		f.cancel(err)
	}
}

func (f *follower) flush() {
	if f.failed != nil {
		return
	}
	if err := f.to.Flush(); err != nil {
		f.cancel(err)
	}
}

func (f *follower) cancel(err error) {
	if f.failed != nil {
		return
	}
	f.failed = err
	f.sequence.driver.Handle(f.sequence.id, worker.Cancel{ID: f.sequence.id, Err: err})
}

func sends(action worker.Action) bool {
	switch action.(type) {
	case worker.SendDecode, worker.SendPrefill, *scheduler.Sampled:
		return true
	}
	return false
}
