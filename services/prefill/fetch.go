package prefill

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/kvtransfer/store"
)

// blockClient talks to block stores; *store.Client is one.
type blockClient interface {
	// Put returns when no block is read any more, Fetch when none is written.
	Put(ctx context.Context, to store.Peer, prefix store.Prefix, blocks []kvcache.BlockID) (bytes uint64, err error)
	Fetch(ctx context.Context, from store.Peer, prefix store.Prefix, blocks []kvcache.BlockID, held int) (bytes uint64, err error)
}

// fetcher gets prefixes from block stores, each once however many requests wait
// for it.
type fetcher struct {
	driver  *worker.Driver
	client  blockClient
	speeds  *speeds
	metrics *metrics
	logger  *slog.Logger
	chunk   int             // most prompt tokens of one step
	ctx     context.Context // the life of every fetch

	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running map[kvcache.Hash]*fetch // by the first block that was lacking
}

// fetch is one fetch, for all requests that wait for it.
type fetch struct {
	id     scheduler.SequenceID
	store  string // its worker id
	wanted uint64 // bytes
	began  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of it is written any more

	// Set before done is closed.
	bytes uint64
	err   error

	// Guarded by fetcher.mu.
	users int
	over  bool
}

// Causes of the end of a fetch that nobody waits for any more.
var (
	errTooSlow   = errors.New("computing is quicker than the store")
	errAbandoned = errors.New("the request is over")
	errClosing   = errors.New("the worker stops")
)

// fetched is what came of a request's source.
type fetched struct {
	// Tried: a store was asked, or another request's fetch waited for.
	Tried bool
	// From and Until are the tokens that were cached before and are after it.
	From, Until int
	Took        time.Duration
	Bytes       uint64
	Err         error

	release func() // nil: nothing is held
}

// Release lets what was fetched be evicted: for when the request has been
// submitted. It may be called more than once.
func (f *fetched) Release() {
	if f.release != nil {
		f.release()
		f.release = nil
	}
}

// get fetches what source has of the prompt and the prefix cache has not, if that
// is quicker than computing it. It returns when the blocks are there, when they
// will not come soon enough, or when ctx ends; in each case the request goes on.
func (f *fetcher) get(ctx context.Context, source *workerv1.BlockSource, request *scheduler.Request) (result fetched) {
	layout := f.driver.Layout()
	began := time.Now()
	// The last token is computed in any case.
	until := min(int(source.GetBlocks()), (len(request.Tokens)-1)/layout.BlockTokens)
	tokens := request.Tokens[:until*layout.BlockTokens]
	hashes := f.driver.BlockHashes(request.Salt, tokens)
	from := f.driver.CachedBlocks(request.Salt, hashes, tokens)
	if from >= until {
		return result
	}
	if rests := f.speeds.rests(source.GetWorkerId()); began.Before(rests) {
		f.metrics.fetch(fetchResting)
		return result
	}
	_, model := f.driver.Load()
	cost := fetchCost{
		Model: model, BytesPerSecond: f.speeds.bytesPerSecond(source.GetWorkerId(), began),
		PageBytes: layout.PageBytes(), BlockTokens: layout.BlockTokens, ChunkTokens: f.chunk,
	}
	limit, worth := cost.worth(len(request.Tokens), from, until)
	if !worth {
		f.metrics.fetch(fetchDeclined)
		return result
	}
	// Enough is left to compute the prompt while a fetch that hangs still has its
	// blocks.
	spare := (len(request.Tokens)+layout.BlockTokens-1)/layout.BlockTokens - from
	running := f.join(ctx, hashes[from], source, store.Prefix{Salt: request.Salt, Tokens: tokens}, spare)
	if running == nil {
		return result
	}
	result.Tried, result.From, result.Until = true, from*layout.BlockTokens, from*layout.BlockTokens
	result.Err = f.wait(ctx, running, limit)
	result.Took = time.Since(began)
	if result.Err == nil {
		result.Until, result.Bytes = len(tokens), running.bytes
		result.release = func() { f.leave(running, nil) }
	}
	return result
}

// wait waits for a fetch as long as it may be waited for. Who gets an error has
// left it.
func (f *fetcher) wait(ctx context.Context, running *fetch, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-running.done:
		if running.err != nil {
			f.leave(running, nil)
		}
		return running.err
	case <-timer.C:
		f.leave(running, errTooSlow)
		return errTooSlow
	case <-ctx.Done():
		f.leave(running, errAbandoned)
		return errAbandoned
	}
}

// join takes part in the fetch that runs for the same blocks, or begins one. Nil:
// there is no room for the blocks now, or the worker stops.
func (f *fetcher) join(ctx context.Context, first kvcache.Hash, source *workerv1.BlockSource, prefix store.Prefix, spare int) *fetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.running[first]; running != nil {
		running.users++
		return running
	}
	if f.closed {
		return nil
	}
	running := &fetch{id: f.driver.Reserve(), store: source.GetWorkerId(), began: time.Now(), done: make(chan struct{}), users: 1}
	reserved, ok := f.reserve(running.id, prefix, spare)
	if !ok {
		f.metrics.fetch(fetchNoRoom)
		return nil
	}
	layout := f.driver.Layout()
	running.wanted = uint64(layout.PageBytes()) * uint64(len(reserved.Blocks)-reserved.CachedTokens/layout.BlockTokens)
	f.running[first] = running
	var fetching context.Context
	// Of the request it has what is logged and traced, not the end.
	fetching, running.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	f.tasks.Go(func() {
		stop := context.AfterFunc(f.ctx, func() { running.cancel(errClosing) })
		defer stop()
		f.run(fetching, running, source, prefix, reserved)
		f.end(first, running)
	})
	return running
}

// reserve gets the blocks, which is at once or not at all.
func (f *fetcher) reserve(id scheduler.SequenceID, prefix store.Prefix, spare int) (reserved scheduler.Reserved, ok bool) {
	sequence := f.driver.Submit(scheduler.Request{ID: id, Kind: scheduler.Restore, Tokens: prefix.Tokens, Salt: prefix.Salt, Spare: spare})
	for _, action := range sequence.Take() {
		if a, is := action.(scheduler.Reserved); is {
			reserved, ok = a, true
		}
	}
	return reserved, ok
}

// run fetches, and says to the scheduler and to the speeds what came of it.
func (f *fetcher) run(ctx context.Context, running *fetch, source *workerv1.BlockSource, prefix store.Prefix, reserved scheduler.Reserved) {
	held := reserved.CachedTokens / f.driver.Layout().BlockTokens
	from := store.Peer{ID: source.GetWorkerId(), Epoch: source.GetEpoch(), Addresses: source.GetAddresses()}
	running.bytes, running.err = f.client.Fetch(ctx, from, prefix, reserved.Blocks, held)
	now := time.Now()
	if running.err == nil {
		f.driver.KVArrived(running.id, nil)
		f.speeds.moved(from.ID, running.bytes, now.Sub(running.began), now)
		f.metrics.fetched(len(reserved.Blocks)-held, running.bytes, now.Sub(running.began))
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		running.err = cause
	}
	f.driver.TransferDone(running.id)
	f.metrics.fetch(fetchFailure(running.err))
	f.judge(from.ID, running.err, now)
	f.logger.Info("kv blocks were not fetched", slog.String("store", from.ID), slog.Int("blocks", len(reserved.Blocks)-held), slog.Any("error", running.err))
}

// judge remembers of a store what its failure says about the next fetch.
func (f *fetcher) judge(id string, err error, now time.Time) {
	switch {
	case errors.Is(err, errTooSlow): // remembered when it was given up
	case errors.Is(err, errAbandoned), errors.Is(err, errClosing):
	case errors.Is(err, store.ErrRestarted): // the hint is old, the store is well
	default:
		rest, bad := storeTrouble(err)
		if bad {
			f.speeds.failed(id, rest, now)
		}
	}
}

// storeTrouble says whether a failure is one of the store as a whole, and for how
// long it asks to be left alone.
func storeTrouble(err error) (rest time.Duration, bad bool) {
	if _, is := errors.AsType[*store.MissingError](err); is || errors.Is(err, store.ErrHeld) {
		return 0, false
	}
	if busy, is := errors.AsType[*store.BusyError](err); is {
		return busy.RetryAfter, true
	}
	if _, is := errors.AsType[*store.LayoutError](err); is {
		return storeRestMost, true
	}
	return 0, true
}

// end tells who waits. If all have left, what was fetched is let go.
func (f *fetcher) end(first kvcache.Hash, running *fetch) {
	f.mu.Lock()
	running.over = true
	if f.running[first] == running {
		delete(f.running, first)
	}
	unused := running.users == 0
	f.mu.Unlock()
	close(running.done)
	running.cancel(nil)
	if unused && running.err == nil {
		f.driver.TransferDone(running.id)
	}
}

// leave is for each who joined, once. The last one ends the fetch if it runs, and
// else lets go what was fetched.
func (f *fetcher) leave(running *fetch, cause error) {
	f.mu.Lock()
	running.users--
	last, over := running.users == 0, running.over
	if last && !over {
		for first, other := range f.running {
			if other == running {
				delete(f.running, first) // nobody joins what is ending
			}
		}
	}
	f.mu.Unlock()
	switch {
	case last && !over:
		if errors.Is(cause, errTooSlow) {
			now := time.Now()
			f.speeds.tooSlow(running.store, running.wanted, now.Sub(running.began), now)
		}
		running.cancel(cause)
	case last && running.err == nil:
		f.driver.TransferDone(running.id)
	}
}

// count is how many fetches run.
func (f *fetcher) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.running)
}

// close lets no fetch begin any more and waits for those that run, which end with
// the context that all have.
func (f *fetcher) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.tasks.Wait()
}
