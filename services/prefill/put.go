package prefill

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// putTimeout bounds one put: its blocks cannot be evicted meanwhile.
const putTimeout = 10 * time.Second

// errStopped is why a put ended whose blocks are needed.
var errStopped = errors.New("the blocks are needed")

// putter puts prefixes that are near their eviction into block stores.
type putter struct {
	driver  *worker.Driver // set before anything is put
	client  blockClient
	speeds  *speeds
	metrics *metrics
	logger  *slog.Logger
	most    int // puts at a time
	wake    chan struct{}

	tasks sync.WaitGroup

	// limiting is held to tell the driver how many puts there may be; mu may be taken
	// with it, and not the other way round.
	limiting sync.Mutex
	limited  int
	closed   bool // nothing begins any more

	mu      sync.Mutex
	stores  []storeclient.Peer
	running map[scheduler.SaveID]context.CancelCauseFunc
}

func newPutter(most int, client blockClient, known *speeds, counted *metrics, logger *slog.Logger) *putter {
	return &putter{
		client: client, speeds: known, metrics: counted, logger: logger, most: most,
		wake: make(chan struct{}, 1), running: make(map[scheduler.SaveID]context.CancelCauseFunc),
	}
}

// begin puts a prefix. The driver calls it under its lock, so it does not block.
func (p *putter) begin(save scheduler.Save) {
	ctx, cancel := context.WithCancelCause(context.Background())
	p.mu.Lock()
	p.running[save.ID] = cancel
	p.mu.Unlock()
	p.tasks.Go(func() {
		saved, finite := false, p.driver.Finite(save.Blocks)
		if finite {
			saved = p.put(ctx, save)
		} else {
			p.metrics.put(putSpoilt, 0)
			p.logger.Error("kv blocks are not finite and are not put into a store", slog.Int("blocks", len(save.Blocks)))
		}
		cancel(nil)
		p.mu.Lock()
		delete(p.running, save.ID)
		p.mu.Unlock()
		if !saved {
			// Before the driver hears of it, which offers the blocks once more: they wait
			// until the store is not avoided any more.
			p.apply(time.Now())
		}
		p.driver.SaveDone(scheduler.SaveDone{ID: save.ID, Saved: saved, Spoilt: !finite})
	})
}

// stop ends a put soon. The driver calls it under its lock.
func (p *putter) stop(id scheduler.SaveID) {
	p.mu.Lock()
	cancel := p.running[id]
	p.mu.Unlock()
	if cancel != nil {
		cancel(errStopped)
	}
}

// put says whether a store has the prefix now.
func (p *putter) put(ctx context.Context, save scheduler.Save) bool {
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	began := time.Now()
	to, ok := p.choose(p.driver.BlockHashes(save.Salt, save.Tokens[:len(save.Tokens)/len(save.Blocks)])[0], began)
	if !ok {
		p.metrics.put(putNoStore, 0)
		return false
	}
	prefix := storeclient.Prefix{Salt: save.Salt, Tokens: save.Tokens}
	bytes, err := p.client.Put(ctx, to, prefix, save.Blocks)
	if again := offerAgain(err); again > 0 && wait(ctx, again) {
		bytes, err = p.client.Put(ctx, to, prefix, save.Blocks)
	}
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errStopped) || errors.Is(cause, errClosing)) {
		err = cause
	}
	p.metrics.put(putResult(err), bytes)
	if errors.Is(err, errStopped) || errors.Is(err, errClosing) {
		return false
	}
	p.speeds.note(to.ID, putting, err, time.Now())
	p.poke()
	if err == nil || errors.Is(err, storeclient.ErrHeld) {
		return true
	}
	p.logger.Info("kv blocks were not put into a store", slog.String("store", to.ID), slog.Int("blocks", len(save.Blocks)), slog.Any("error", err))
	return false
}

// wait says whether so much time passed before ctx ended.
func wait(ctx context.Context, length time.Duration) bool {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// choose is the store of a prefix that begins with a block: always the same while
// the same stores are there, so that a chain of blocks is on one.
func (p *putter) choose(first kvcache.Hash, now time.Time) (to storeclient.Peer, ok bool) {
	p.mu.Lock()
	stores := p.stores
	p.mu.Unlock()
	var best uint64
	for _, s := range stores {
		if now.Before(p.speeds.avoidedUntil(s.ID, putting)) {
			continue
		}
		if weight := rendezvous(s.ID, first); !ok || weight > best {
			to, best, ok = s, weight, true
		}
	}
	return to, ok
}

// rendezvous is a store's weight for a block: highest random weight hashing, after
// Thaler and Ravishankar.
func rendezvous(store string, block kvcache.Hash) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(store)) // it never fails
	x := h.Sum64() ^ uint64(block)
	// The finalizer of SplitMix64: without it, stores would be ordered alike for most
	// blocks.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// known says which stores there are. Those that hold blocks of another layout are
// of use only if there are no others: one of them may take this one.
func (p *putter) known(stores []storeclient.Peer) {
	own := p.driver.Layout().Digest()
	fit := slices.DeleteFunc(slices.Clone(stores), func(s storeclient.Peer) bool {
		return s.LayoutDigest != 0 && s.LayoutDigest != own
	})
	if len(fit) == 0 {
		fit = slices.Clone(stores)
	}
	p.mu.Lock()
	p.stores = fit
	p.mu.Unlock()
	p.poke()
}

func (p *putter) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run lets prefixes be saved while there is a store that takes them, until ctx
// ends. Then it ends those that run and waits for them.
func (p *putter) run(ctx context.Context) {
	for {
		timer := time.NewTimer(p.apply(time.Now()))
		select {
		case <-p.wake:
			timer.Stop()
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			p.close()
			return
		}
	}
}

func (p *putter) close() {
	p.limiting.Lock()
	p.closed = true
	p.limiting.Unlock()
	p.apply(time.Now()) // nothing begins after it
	p.mu.Lock()
	for _, cancel := range p.running {
		cancel(errClosing)
	}
	p.mu.Unlock()
	p.tasks.Wait()
}

// apply tells the driver how many puts there may be now, and says when to look again.
func (p *putter) apply(now time.Time) (next time.Duration) {
	p.limiting.Lock()
	defer p.limiting.Unlock()
	want, next := p.limit(now)
	if p.closed {
		want = 0
	}
	if want != p.limited {
		p.limited = want
		p.driver.LimitSaves(want)
	}
	return next
}

// limit is how many puts there may be now, and when to look again.
func (p *putter) limit(now time.Time) (puts int, next time.Duration) {
	p.mu.Lock()
	stores := p.stores
	p.mu.Unlock()
	next = time.Hour
	for _, s := range stores {
		if until := p.speeds.avoidedUntil(s.ID, putting); now.Before(until) {
			next = min(next, until.Sub(now))
		} else {
			puts = p.most
		}
	}
	return puts, next
}
