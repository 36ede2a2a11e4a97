package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/stock"
)

const (
	// tokenBytes is what a token takes, beside its KV.
	tokenBytes = 4
	// bookBytes is about what is known of a block beside its tokens, bytes.
	bookBytes = 256
	// maxBlocks keeps the list of all blocks within one message.
	maxBlocks = 1 << 22
	// clearTimeout bounds how long sending may go on when a shelf is cleared away.
	clearTimeout = 2 * time.Second
)

// shelf is blocks of one layout, and what moves them. Its stock and its used are
// guarded by Service.mu.
type shelf struct {
	layout   kvcache.Layout
	digest   uint64
	blocks   int
	pages    *pages
	stock    *stock.Stock
	receiver *kvtransfer.Receiver
	sender   *kvtransfer.Sender
	served   registered // the receiver, as it would be served
	used     time.Time  // when a block was last offered or asked for

	stop context.CancelFunc
	done chan struct{} // closed when the receiver has ended
	err  error         // why, set before
}

// BlockBytes is what one block of a layout takes of Config.MemoryBytes: its page, its
// tokens and what is known of it.
func BlockBytes(layout kvcache.Layout) int64 {
	return int64(layout.PageBytes()) + int64(tokenBytes*layout.BlockTokens) + bookBytes
}

// blocksOf is how many blocks of a layout fit into so many bytes.
func blocksOf(memoryBytes int64, layout kvcache.Layout) int {
	return int(min(memoryBytes/BlockBytes(layout), maxBlocks))
}

// errNoMemory is why there is no shelf: the memory for its pages cannot be had.
var errNoMemory = errors.New("no place for blocks")

// newShelf is an empty shelf whose receiver runs. One block of layout fits at least.
func (s *Service) newShelf(layout kvcache.Layout) (*shelf, error) {
	blocks := blocksOf(s.cfg.MemoryBytes, layout)
	memory, err := newPages(layout, blocks)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoMemory, err)
	}
	h := &shelf{
		layout: layout, digest: layout.Digest(), blocks: blocks, pages: memory, done: make(chan struct{}), used: time.Now(),
		stock: stock.New(blocks, layout, stock.Limits{Arrivals: s.cfg.MaxPuts, Readings: s.cfg.MaxFetches}),
	}
	if err := h.connect(s); err != nil {
		_ = memory.close() // the first error says more
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.done)
		h.err = h.receiver.Run(ctx)
	}()
	return h, nil
}

// connect makes receiver and sender. Neither runs.
func (h *shelf) connect(s *Service) (err error) {
	id := s.deps.Identity
	h.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: id.ID, Epoch: id.Epoch, Addresses: s.addresses, Layout: h.layout,
		Lease: s.cfg.TransferLease, CreditBytes: max(s.cfg.TransferCreditBytes, h.layout.SliceBytes),
		MaxReservations: s.cfg.MaxPuts, MaxStreams: s.deps.KVMaxStreams, Logger: s.deps.Logger, Tracer: s.deps.Tracer,
	}, h.pages)
	if err != nil {
		return fmt.Errorf("kv receiver: %w", err)
	}
	h.receiver.Register(&h.served)
	h.sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: id.ID, Epoch: id.Epoch, Layout: h.layout, Dial: s.deps.Dial, Streams: s.deps.KVConnections, Logger: s.deps.Logger,
	}, h.pages)
	if err != nil {
		return fmt.Errorf("kv sender: %w", err)
	}
	return nil
}

// closeSender ends the sessions in which blocks were sent, once or again.
func (h *shelf) closeSender(logger *slog.Logger) {
	closing, cancel := context.WithTimeout(context.Background(), clearTimeout)
	defer cancel()
	if err := h.sender.Close(closing); err != nil {
		logger.Warn("kv sender did not close in time", slog.Any("error", err))
	}
}

// clear ends what moves blocks, and unmaps them when it has ended.
func (h *shelf) clear(logger *slog.Logger) {
	h.stop()
	h.closeSender(logger)
	<-h.done
	if h.err != nil {
		logger.Error("kv receiver ends", slog.Any("error", h.err))
	}
	if err := h.pages.close(); err != nil {
		logger.Error("memory is not given back", slog.Any("error", err))
	}
}

// registered is a grpc.ServiceRegistrar that keeps the one service that it is
// given.
type registered struct {
	service        *grpc.ServiceDesc
	implementation any
}

// RegisterService implements grpc.ServiceRegistrar.
func (r *registered) RegisterService(service *grpc.ServiceDesc, implementation any) {
	r.service, r.implementation = service, implementation
}

// stream serves one stream with the handler of that name.
func (r *registered) stream(name string, stream grpc.ServerStream) (is bool, err error) {
	for i := range r.service.Streams {
		if r.service.Streams[i].StreamName == name {
			return true, r.service.Streams[i].Handler(r.implementation, stream)
		}
	}
	return false, nil
}
