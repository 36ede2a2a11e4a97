package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// errCut is why what is left of a drain ends.
var errCut = errors.New("the store is leaving")

// server is the BlockStore gRPC service.
type server struct {
	kvtransferv1.UnimplementedBlockStoreServer
	service *Service
}

// Offer reserves blocks.
func (v *server) Offer(ctx context.Context, request *kvtransferv1.OfferRequest) (*kvtransferv1.OfferResponse, error) {
	ticket, err := v.service.offer(ctx, request)
	v.service.metrics.offers.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, err
	}
	return &kvtransferv1.OfferResponse{Ticket: ticket}, nil
}

// Fetch sends blocks.
func (v *server) Fetch(ctx context.Context, request *kvtransferv1.FetchRequest) (*kvtransferv1.FetchResponse, error) {
	bytes, err := v.service.fetch(ctx, request)
	v.service.metrics.fetches.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, err
	}
	return &kvtransferv1.FetchResponse{Bytes: bytes}, nil
}

func (s *Service) offer(ctx context.Context, request *kvtransferv1.OfferRequest) (*kvtransferv1.Ticket, error) {
	if err := membership.CheckEpoch(request.GetStoreEpoch(), s.deps.Identity.Epoch); err != nil {
		return nil, err
	}
	if err := s.checkSender(ctx, request.GetSender()); err != nil {
		return nil, err
	}
	tokens, err := parsePrefix(request.GetPrefix())
	if err != nil {
		return nil, err
	}
	layout, problem := parseLayout(request.GetLayout())
	if problem != "" {
		return nil, rpc.InvalidArgument("layout", problem)
	}
	digest := layout.Digest()
	if claimed := request.GetPrefix().GetLayoutDigest(); claimed != digest {
		return nil, rpc.InvalidArgument("prefix.layout_digest", fmt.Sprintf("is %#x, but the layout's is %#x", claimed, digest))
	}
	if err := checkWhole(len(tokens), layout.BlockTokens); err != nil {
		return nil, err
	}
	asked, total := len(tokens)/layout.BlockTokens, blockstore.Blocks(s.cfg.memoryBytes(), layout)
	switch { // before anything is cleared away for it, or hashed
	case total == 0:
		s.logTooSmall(layout)
		return nil, rpc.Errorf(codes.FailedPrecondition, api.ReasonStoreTooSmall,
			"no block of this model fits: one takes %d bytes, but the store has %d in all: raise --store-memory, or use another store",
			blockstore.BlockBytes(layout), s.cfg.memoryBytes())
	case asked > total:
		return nil, storeclient.OfferStatus(blockstore.TooLarge, asked, total)
	}
	prefix := blockstore.NewPrefix(layout, total, request.GetPrefix().GetSalt(), tokens)
	a, err := s.take(ctx, layout, digest, prefix)
	if err != nil {
		return nil, err
	}
	if a.verdict != blockstore.Taken {
		return nil, storeclient.OfferStatus(a.verdict, asked, total)
	}
	return s.reserve(ctx, request.GetSender(), a.cache, a.put)
}

// checkSender refuses blocks of workers that are not registered, and of those that offer them in
// another's name. Workers of earlier versions do not say who they are: that counts where nobody
// has a certificate. Its errors are gRPC statuses.
func (s *Service) checkSender(ctx context.Context, sender string) error {
	if err := checkCaller(ctx, sender); err != nil {
		return err
	}
	if s.deps.Registered == nil || sender == "" {
		return nil
	}
	if err := s.deps.Registered(ctx, sender); err != nil {
		return notRegistered(err)
	}
	return nil
}

// checkCaller refuses a call in another worker's name, where callers have certificates.
func checkCaller(ctx context.Context, worker string) error {
	if caller, known := identity.FromContext(ctx); known && !caller.Names(worker) {
		return rpc.Errorf(codes.PermissionDenied, api.ReasonWrongWorker, "the caller's certificate is that of %s, not of %q: call in your own name", caller, worker)
	}
	return nil
}

// notRegistered is the status for a worker that Deps.Registered refuses.
func notRegistered(err error) error {
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	return rpc.Error(codes.PermissionDenied, api.ReasonWrongWorker, err.Error()+": register it first", 0)
}

// tooSmallEvery is how often at most it is logged that blocks do not fit.
const tooSmallEvery = time.Minute

// logTooSmall says now and then that this store is of no use to who offers it.
func (s *Service) logTooSmall(layout kvcache.Layout) {
	s.mu.Lock()
	_, due := s.tooSmall.Due(time.Now())
	s.mu.Unlock()
	if due {
		s.deps.Logger.Error("store cannot hold blocks of a model: one block is larger than its memory",
			slog.String("model", modelName(layout.ModelDigest)), slog.Int64("block_bytes", blockstore.BlockBytes(layout)), slog.Int64("memory_bytes", s.cfg.memoryBytes()))
	}
}

// reserve makes the ticket of a put. Without one nobody can write, and the
// put has ended.
func (s *Service) reserve(ctx context.Context, sender string, c *cache, put blockstore.Put) (*kvtransferv1.Ticket, error) {
	id := put.ID
	ticket, err := c.receiver.Reserve(kvtransfer.Reservation{
		RequestID: rpc.RequestID(ctx), Sender: sender, Blocks: put.Blocks, HeldBlocks: put.Held, PromptBlocks: len(put.Blocks),
		Committed: func(a kvtransfer.Arrival) {
			if a.Approximate { // no ticket asks for it: what is held is exact
				s.lose(c, id)
				return
			}
			s.metrics.receivedBytes.Add(float64(a.Bytes))
			s.update(c, func() { c.store.Committed(id); delete(s.puts, id) })
		},
		Failed:  func(error) { s.update(c, func() { c.store.Failed(id) }) },
		Drained: func() { s.lose(c, id) },
	})
	if err != nil {
		s.update(c, func() { c.store.Drained(id); delete(s.puts, id) })
		if errors.Is(err, kvtransfer.ErrClosed) {
			return nil, worker.RefusedError(scheduler.Draining)
		}
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonStoreBusy, fmt.Sprintf("no KV reservation: %v", err), storeclient.BusyRetry)
	}
	s.mu.Lock()
	if _, open := s.puts[id]; open {
		s.puts[id] = ticket.GetTransferId()
	}
	cut := s.cut
	s.mu.Unlock()
	gone := ctx.Err() // nobody waits for the ticket
	if cut || gone != nil {
		c.receiver.Cancel(ticket.GetTransferId())
	}
	if gone != nil {
		return nil, status.FromContextError(gone).Err()
	}
	return ticket, nil
}

// lose ends a put that brought nothing.
func (s *Service) lose(c *cache, id blockstore.PutID) {
	s.metrics.lost.Inc()
	s.update(c, func() { c.store.Drained(id); delete(s.puts, id) })
}

// update changes what the store knows of a put or fetch.
func (s *Service) update(c *cache, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.used = time.Now()
	change()
	s.noteChange()
}

func (s *Service) fetch(ctx context.Context, request *kvtransferv1.FetchRequest) (bytes uint64, err error) {
	if err := membership.CheckEpoch(request.GetStoreEpoch(), s.deps.Identity.Epoch); err != nil {
		return 0, err
	}
	tokens, err := parsePrefix(request.GetPrefix())
	if err != nil {
		return 0, err
	}
	if err := checkTicket(request.GetTicket(), request.GetPrefix()); err != nil {
		return 0, err
	}
	if err := checkCaller(ctx, request.GetTicket().GetReceiver()); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, fetch, err := s.read(request, tokens, cancel)
	if err != nil {
		return 0, err
	}
	defer s.update(c, func() { c.store.Done(fetch.ID); delete(s.fetches, fetch.ID) })
	return s.send(ctx, c, fetch, request.GetTicket())
}

// read takes the blocks that a fetch asks for. cut ends the fetch from outside.
func (s *Service) read(request *kvtransferv1.FetchRequest, tokens []int32, cut context.CancelCauseFunc) (*cache, blockstore.Fetch, error) {
	ticket := request.GetTicket()
	c, err := s.cacheFor(request, len(tokens))
	if err != nil {
		return nil, blockstore.Fetch{}, err
	}
	prefix := blockstore.NewPrefix(c.layout, c.blocks, request.GetPrefix().GetSalt(), tokens)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return nil, blockstore.Fetch{}, err
	}
	blocks := int(ticket.GetBlocks())
	if s.cache != c { // it gave way meanwhile
		s.metrics.missed(blocks)
		return nil, blockstore.Fetch{}, storeclient.MissingStatus(0, blocks)
	}
	c.used = time.Now()
	fetch, held, verdict := c.store.Read(prefix)
	if verdict != blockstore.Taken {
		if verdict == blockstore.Missing {
			s.metrics.missed(blocks - held)
		}
		return nil, blockstore.Fetch{}, storeclient.FetchStatus(verdict, held, blocks)
	}
	s.metrics.hits.Add(float64(blocks - int(ticket.GetHeldBlocks())))
	s.fetches[fetch.ID] = cut
	s.noteChange()
	return c, fetch, nil
}

// cacheFor is the cache that may have what a fetch of so many tokens asks for. Its
// errors are gRPC statuses.
func (s *Service) cacheFor(request *kvtransferv1.FetchRequest, tokens int) (*cache, error) {
	asked, digest := request.GetTicket().GetBlocks(), request.GetPrefix().GetLayoutDigest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return nil, err
	}
	c := s.cache
	if c == nil {
		s.metrics.missed(int(asked))
		return nil, storeclient.MissingStatus(0, int(asked))
	}
	if c.digest != digest {
		return nil, mismatch(c, fmt.Sprintf("a model with layout digest %#x", digest))
	}
	if err := checkWhole(tokens, c.layout.BlockTokens); err != nil {
		return nil, err
	}
	if blocks := tokens / c.layout.BlockTokens; int64(asked) != int64(blocks) {
		return nil, rpc.InvalidArgument("ticket.blocks", fmt.Sprintf("is %d, but the prefix has %d: reserve for the same prefix", asked, blocks))
	}
	return c, nil
}

// send sends blocks to the ticket's receiver. It returns when none is read any
// more.
func (s *Service) send(ctx context.Context, c *cache, fetch blockstore.Fetch, ticket *kvtransferv1.Ticket) (bytes uint64, err error) {
	// What comes out of the store is what came in, whatever the receiver would like:
	// it may hand it on.
	native := proto.CloneOf(ticket)
	native.Encoding = kvtransferv1.Encoding_ENCODING_NATIVE
	transfer, err := c.sender.Open(ctx, native, rpc.RequestID(ctx))
	if err != nil {
		return 0, fetchError(ctx, err)
	}
	err = transfer.SendAll(ctx, c.layout.Layers, int(ticket.GetHeldBlocks()), slices.Clone(fetch.Blocks))
	sent := transfer.Stats().Bytes
	s.metrics.sentBytes.Add(float64(sent))
	if err != nil {
		return 0, fetchError(ctx, err)
	}
	return sent, nil
}

// fetchError is the status for blocks that did not reach their receiver.
func fetchError(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errCut), errors.Is(err, kvtransfer.ErrClosed):
		return worker.RefusedError(scheduler.Draining)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	if refused, is := errors.AsType[*kvtransfer.RefusedError](err); is {
		return rpc.Error(codes.Unavailable, api.ReasonTransferRefused, fmt.Sprintf("the receiver refuses the KV: %v", refused), 0)
	}
	return rpc.Error(codes.Unavailable, api.ReasonTransferFailed, fmt.Sprintf("the KV did not reach the receiver: %v", err), 0)
}

// transferServer is the KVTransfer service, each stream of which goes to the receiver
// that is there when it begins.
type transferServer struct {
	kvtransferv1.UnimplementedKVTransferServer
	service *Service
}

// Stream implements the KVTransfer service.
func (v transferServer) Stream(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	v.service.mu.Lock()
	c := v.service.cache
	v.service.mu.Unlock()
	if c == nil {
		return rpc.Error(codes.Unavailable, api.ReasonLayoutMismatch, "this store holds no blocks yet: offer some first", 0)
	}
	return c.receiver.Serve(stream)
}
