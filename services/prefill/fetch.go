package prefill

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// blockClient talks to block stores; *store.Client is one.
type blockClient interface {
	// Put returns when no block is read any more, Fetch when none is written.
	Put(ctx context.Context, to storeclient.Peer, prefix storeclient.Prefix, blocks []kvcache.BlockID) (bytes uint64, err error)
	Fetch(ctx context.Context, from storeclient.Peer, prefix storeclient.Prefix, blocks []kvcache.BlockID, held int) (bytes uint64, err error)
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
	running map[asked]*fetch
}

// asked is what a fetch is joined for: the first block that was lacking, of one
// incarnation of a store.
type asked struct {
	first kvcache.Hash
	store string // its worker id
	epoch uint64
}

// fetch is one fetch, for all requests that wait for it.
type fetch struct {
	id     scheduler.SequenceID
	asked  asked
	tokens []int32 // what it brings, whole blocks from the first one on
	wanted uint64  // bytes
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

// errNotFinite is of blocks that are no use to anybody.
var errNotFinite = errors.New("the blocks are not finite")

// fetched is what came of a request's source.
type fetched struct {
	// Tried: a store was asked, or another request's fetch waited for.
	Tried bool
	// Verdict is about the store, of who asked it.
	Verdict workerv1.FetchVerdict
	// From and Until are the tokens that were cached before and are after it.
	From, Until int
	Took        time.Duration
	Bytes       uint64 // of who asked
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
	if until := f.speeds.avoidedUntil(source.GetWorkerId(), fetching); began.Before(until) {
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
	whole := (len(request.Tokens) + layout.BlockTokens - 1) / layout.BlockTokens
	running, joined := f.join(ctx, hashes[from], source, storeclient.Prefix{Salt: request.Salt, Tokens: tokens}, spare{wanted: whole - from, least: whole - until})
	if running == nil {
		return result
	}
	if joined {
		// It is worth what it brings of this prompt.
		until = common(tokens, running.tokens) / layout.BlockTokens
		if limit, worth = cost.worth(len(request.Tokens), from, until); !worth {
			f.leave(running, errAbandoned)
			f.metrics.fetch(fetchDeclined)
			return result
		}
		f.metrics.fetch(fetchJoined)
	}
	result.Tried, result.From, result.Until = true, from*layout.BlockTokens, from*layout.BlockTokens
	result.Err = f.wait(ctx, running, limit)
	result.Took = time.Since(began)
	if !joined {
		result.Verdict = verdict(result.Err)
	}
	if result.Err == nil {
		result.Until = until * layout.BlockTokens
		if !joined {
			result.Bytes = running.bytes
		}
		result.release = func() { f.leave(running, nil) }
	}
	return result
}

// spare is how many blocks a fetch leaves to the request that it is for. With wanted
// the prompt can be computed while a fetch that hangs still has its blocks, with least
// only behind what is fetched: should the fetch fail then, the request waits until
// nothing of it can land any more, for two leases of the receiver at the most.
type spare struct{ wanted, least int }

// common is how many leading tokens are the same.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
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

// join takes part in the fetch that runs for the same block from the same store, or
// begins one. Nil: there are no free blocks now, or the worker stops.
func (f *fetcher) join(ctx context.Context, first kvcache.Hash, source *workerv1.BlockSource, prefix storeclient.Prefix, left spare) (running *fetch, joined bool) {
	key := asked{first: first, store: source.GetWorkerId(), epoch: source.GetEpoch()}
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.running[key]; running != nil {
		running.users++
		return running, true
	}
	if f.closed {
		f.metrics.fetch(fetchDraining)
		return nil, false
	}
	running = &fetch{id: f.driver.Reserve(), asked: key, tokens: prefix.Tokens, began: time.Now(), done: make(chan struct{}), users: 1}
	reserved, refusal := f.reserve(running.id, prefix, left)
	if refusal != "" {
		f.metrics.fetch(refusal)
		return nil, false
	}
	layout := f.driver.Layout()
	running.wanted = uint64(layout.PageBytes()) * uint64(len(reserved.Blocks)-reserved.CachedTokens/layout.BlockTokens)
	f.running[key] = running
	var life context.Context
	// Of the request it has what is logged and traced, not the end.
	life, running.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	f.tasks.Go(func() {
		stop := context.AfterFunc(f.ctx, func() { running.cancel(errClosing) })
		defer stop()
		f.run(life, running, source, prefix, reserved)
		f.end(running)
	})
	return running, false
}

// reserve gets the blocks, which is at once or not at all: then refusal is what came
// of the hint.
func (f *fetcher) reserve(id scheduler.SequenceID, prefix storeclient.Prefix, left spare) (reserved scheduler.Reserved, refusal string) {
	if reserved, refusal = f.restore(id, prefix, left.wanted); refusal == fetchNoRoom && left.least < left.wanted {
		return f.restore(id, prefix, left.least)
	}
	return reserved, refusal
}

func (f *fetcher) restore(id scheduler.SequenceID, prefix storeclient.Prefix, spare int) (reserved scheduler.Reserved, refusal string) {
	refusal = fetchNoRoom
	sequence := f.driver.Submit(scheduler.Request{ID: id, Kind: scheduler.Restore, Tokens: prefix.Tokens, Salt: prefix.Salt, Spare: spare})
	for _, action := range sequence.Take() {
		switch a := action.(type) {
		case scheduler.Reserved:
			reserved, refusal = a, ""
		case scheduler.Refused:
			if a.Reason == scheduler.Draining {
				refusal = fetchDraining
			}
		}
	}
	return reserved, refusal
}

// run fetches, and says to the scheduler and to the speeds what came of it.
func (f *fetcher) run(ctx context.Context, running *fetch, source *workerv1.BlockSource, prefix storeclient.Prefix, reserved scheduler.Reserved) {
	held := reserved.CachedTokens / f.driver.Layout().BlockTokens
	from := storeclient.Peer{ID: source.GetWorkerId(), Epoch: source.GetEpoch(), Addresses: source.GetAddresses()}
	running.bytes, running.err = f.client.Fetch(ctx, from, prefix, reserved.Blocks, held)
	now := time.Now()
	if running.err == nil && !f.driver.Finite(reserved.Blocks[held:]) {
		running.err = errNotFinite
	}
	if running.err == nil {
		f.driver.KVArrived(scheduler.KVArrived{ID: running.id, From: from.ID})
		f.speeds.fetched(from.ID, running.bytes, now.Sub(running.began), now)
		f.metrics.fetched(len(reserved.Blocks)-held, running.bytes, now.Sub(running.began))
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		running.err = cause
	}
	f.driver.TransferDone(running.id)
	f.metrics.fetch(fetchFailure(running.err))
	switch err := running.err; {
	case errors.Is(err, errTooSlow): // remembered when it was given up
	case errors.Is(err, errAbandoned), errors.Is(err, errClosing):
	default:
		f.speeds.note(from.ID, fetching, err, now)
	}
	f.logger.Info("kv blocks were not fetched", slog.String("store", from.ID), slog.Int("blocks", len(reserved.Blocks)-held), slog.Any("error", running.err))
}

// end tells who waits. If all have left, what was fetched is let go.
func (f *fetcher) end(running *fetch) {
	f.mu.Lock()
	running.over = true
	f.forget(running)
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
		f.forget(running) // nobody joins what is ending
	}
	f.mu.Unlock()
	switch {
	case last && !over:
		if errors.Is(cause, errTooSlow) {
			now := time.Now()
			f.speeds.tooSlow(running.asked.store, running.wanted, now.Sub(running.began), now)
		}
		running.cancel(cause)
	case last && running.err == nil:
		f.driver.TransferDone(running.id)
	}
}

// forget lets nobody join a fetch. f.mu is held.
func (f *fetcher) forget(running *fetch) {
	if f.running[running.asked] == running {
		delete(f.running, running.asked)
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
