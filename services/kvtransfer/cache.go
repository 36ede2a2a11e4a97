package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

const (
	// clearTimeout bounds how long sending may go on when a cache is cleared away.
	clearTimeout = 2 * time.Second
)

// cache is blocks of one layout, and what moves them. Its store and its used are
// guarded by Service.mu.
type cache struct {
	layout   kvcache.Layout
	digest   uint64
	blocks   int
	pages    *hostpages.Pages
	store    *blockstore.Store
	receiver *kvtransfer.Receiver
	sender   *kvtransfer.Sender
	used     time.Time // when a block was last offered or asked for

	stop context.CancelFunc
	done chan struct{} // closed when the receiver has ended
	err  error         // why, set before
}

// errNoMemory is why there is no cache: the memory for its pages cannot be had.
var errNoMemory = errors.New("no space for blocks")

// newCache is an empty cache whose receiver runs. One block of layout fits at least.
func (s *Service) newCache(layout kvcache.Layout) (*cache, error) {
	blocks := blockstore.Blocks(s.cfg.memoryBytes(), layout)
	memory, err := hostpages.Map(layout, blocks)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoMemory, err)
	}
	c := &cache{
		layout: layout, digest: layout.Digest(), blocks: blocks, pages: memory, done: make(chan struct{}), used: time.Now(),
		store: blockstore.New(blocks, layout, blockstore.Limits{Puts: s.cfg.MaxPuts, Fetches: s.cfg.MaxFetches}),
	}
	if err := c.connect(s); err != nil {
		_ = memory.Close() // the first error says more
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() {
		defer close(c.done)
		c.err = c.receiver.Run(ctx)
	}()
	return c, nil
}

// connect makes receiver and sender. Neither runs.
func (c *cache) connect(s *Service) (err error) {
	id := s.deps.Identity
	c.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: id.ID, Epoch: id.Epoch, Addresses: id.ReceivesKVAt(), Layout: c.layout,
		Lease: s.cfg.TransferLease, CreditBytes: max(s.cfg.TransferCreditBytes, c.layout.SliceBytes),
		MaxReservations: s.cfg.MaxPuts, MaxStreams: s.deps.KVMaxStreams, Logger: s.deps.Logger, Tracer: s.deps.Tracer,
	}, c.pages)
	if err != nil {
		return fmt.Errorf("kv receiver: %w", err)
	}
	c.sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: id.ID, Epoch: id.Epoch, Layout: c.layout, Dial: s.deps.Dial, Registered: s.deps.Registered, Streams: s.deps.KVConnections, Logger: s.deps.Logger,
	}, c.pages)
	if err != nil {
		return fmt.Errorf("kv sender: %w", err)
	}
	return nil
}

// clear ends what moves blocks, and unmaps them when it has ended.
func (c *cache) clear(logger *slog.Logger) {
	c.stop()
	closing, cancel := context.WithTimeout(context.Background(), clearTimeout)
	defer cancel()
	if err := c.sender.Close(closing); err != nil {
		logger.Warn("kv sender did not close in time", slog.Any("error", err))
	}
	<-c.done
	if c.err != nil {
		logger.Error("kv receiver ends", slog.Any("error", c.err))
	}
	if err := c.pages.Close(); err != nil {
		logger.Error("memory is not released", slog.Any("error", err))
	}
}

// maxMessageBytes is the largest message that a receiver of any such layout takes: it
// is served before its layout is known.
var maxMessageBytes = max(
	wire.MaxMessageBytes(kvtransfer.DefaultMaxChunkBytes, 1),
	wire.MaxMessageBytes(maxSliceBytes, maxSliceBytes),
)
