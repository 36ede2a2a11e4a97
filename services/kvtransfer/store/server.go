package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/stock"
)

// What one prefix may carry: far more than any model's context.
const (
	maxPrefixTokens = 1 << 22
	maxSaltBytes    = 1024
)

// busyRetry is when a store that is busy may be asked again.
const busyRetry = 100 * time.Millisecond

// errCut is why what is left of a drain ends.
var errCut = errors.New("the store leaves")

// server is the BlockStore gRPC service.
type server struct {
	kvtransferv1.UnimplementedBlockStoreServer
	service *Service
}

// Offer reserves room.
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

// parsePrefix takes a prefix from the network. Its errors are gRPC statuses.
func parsePrefix(m *kvtransferv1.Prefix) ([]int32, error) {
	ids := m.GetTokenIds()
	switch {
	case len(ids) == 0:
		return nil, rpc.InvalidArgument("prefix.token_ids", "is empty")
	case len(ids) > maxPrefixTokens:
		return nil, rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("has %d tokens: at most %d", len(ids), maxPrefixTokens))
	case len(m.GetSalt()) > maxSaltBytes:
		return nil, rpc.InvalidArgument("prefix.salt", fmt.Sprintf("has %d bytes: at most %d", len(m.GetSalt()), maxSaltBytes))
	}
	tokens := make([]int32, len(ids))
	for i, id := range ids {
		if id > math.MaxInt32 {
			return nil, rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("token %d at index %d is no token", id, i))
		}
		tokens[i] = int32(id)
	}
	return tokens, nil
}

func checkWhole(tokens, blockTokens int) error {
	if tokens%blockTokens != 0 {
		return rpc.InvalidArgument("prefix.token_ids", fmt.Sprintf("%d tokens do not fill blocks of %d", tokens, blockTokens))
	}
	return nil
}

func (s *Service) offer(ctx context.Context, request *kvtransferv1.OfferRequest) (*kvtransferv1.Ticket, error) {
	if err := worker.CheckEpoch(request.GetStoreEpoch(), s.deps.Identity.Epoch); err != nil {
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
		return nil, rpc.InvalidArgument("prefix.layout_digest", fmt.Sprintf("is %#x, the layout's is %#x", claimed, digest))
	}
	if err := checkWhole(len(tokens), layout.BlockTokens); err != nil {
		return nil, err
	}
	asked, total := len(tokens)/layout.BlockTokens, blocksOf(s.cfg.MemoryBytes, layout)
	switch { // before anything is cleared away for it, or hashed
	case total == 0:
		s.logTooSmall(layout)
		return nil, rpc.Errorf(codes.FailedPrecondition, ReasonTooSmall,
			"no block of this model fits: one takes %d bytes, the store has %d in all: give it more (--store-memory), or use another store",
			BlockBytes(layout), s.cfg.MemoryBytes)
	case asked > total:
		return nil, offerError(stock.TooLarge, asked, total)
	}
	prefix := stock.NewPrefix(layout, total, request.GetPrefix().GetSalt(), tokens)
	if err := s.admit(ctx, layout, digest); err != nil {
		return nil, err
	}
	h := s.shelf
	h.used = time.Now()
	arrival, verdict := h.stock.Offer(prefix)
	if verdict == stock.Taken {
		s.puts[arrival.ID] = 0
	}
	s.noteChange()
	s.mu.Unlock()
	if verdict != stock.Taken {
		return nil, offerError(verdict, asked, total)
	}
	return s.reserve(ctx, h, arrival)
}

// tooSmallEvery is how often at most it is logged that blocks do not fit.
const tooSmallEvery = time.Minute

// logTooSmall says now and then that this store is of no use to who offers it.
func (s *Service) logTooSmall(layout kvcache.Layout) {
	s.mu.Lock()
	now := time.Now()
	due := !now.Before(s.tooSmallNext)
	if due {
		s.tooSmallNext = now.Add(tooSmallEvery)
	}
	s.mu.Unlock()
	if due {
		s.deps.Logger.Error("store holds nothing of a model whose blocks are larger than its memory",
			slog.String("model", modelName(layout.ModelDigest)), slog.Int64("block_bytes", BlockBytes(layout)), slog.Int64("memory_bytes", s.cfg.MemoryBytes))
	}
}

func offerError(verdict stock.Verdict, asked, total int) error {
	switch verdict {
	case stock.Held:
		return rpc.Error(codes.AlreadyExists, ReasonHeld, "the store has all these blocks", 0)
	case stock.Arriving:
		return rpc.Error(codes.AlreadyExists, ReasonHeld, "another worker puts these blocks at the moment", 0)
	case stock.PartlyArriving:
		return rpc.Error(codes.Aborted, ReasonArriving, "another worker puts the first of these blocks at the moment: offer the others later", time.Second)
	case stock.TooLarge:
		return rpc.Errorf(codes.ResourceExhausted, ReasonFull, "the store has %d blocks in all, these are %d: offer fewer", total, asked)
	case stock.Full:
		return rpc.Error(codes.ResourceExhausted, ReasonFull, "too much is being written and read: offer again later", time.Second)
	default:
		return rpc.Error(codes.ResourceExhausted, ReasonBusy, "too many transfers into this store at once: offer again later", busyRetry)
	}
}

// reserve makes the ticket of an arrival. Without one nobody can write, and the
// arrival has ended.
func (s *Service) reserve(ctx context.Context, h *shelf, arrival stock.Arrival) (*kvtransferv1.Ticket, error) {
	id := arrival.ID
	ticket, err := h.receiver.Reserve(kvtransfer.Reservation{
		RequestID: rpc.RequestID(ctx), Blocks: arrival.Blocks, HeldBlocks: arrival.Held, PromptBlocks: len(arrival.Blocks),
		Committed: func(a kvtransfer.Arrival) {
			if a.Approximate { // no ticket asks for it: what is held is exact
				s.lose(h, id)
				return
			}
			s.metrics.received(a.Bytes)
			s.arrivalIs(h, func() { h.stock.Committed(id); delete(s.puts, id) })
		},
		Failed:  func(error) { s.arrivalIs(h, func() { h.stock.Failed(id) }) },
		Drained: func() { s.lose(h, id) },
	})
	if err != nil {
		s.arrivalIs(h, func() { h.stock.Drained(id); delete(s.puts, id) })
		if errors.Is(err, kvtransfer.ErrClosed) {
			return nil, worker.RefusedError(scheduler.Draining)
		}
		return nil, rpc.Error(codes.ResourceExhausted, ReasonBusy, fmt.Sprintf("no KV reservation: %v", err), busyRetry)
	}
	s.mu.Lock()
	if _, open := s.puts[id]; open {
		s.puts[id] = ticket.GetTransferId()
	}
	cut := s.cut
	s.mu.Unlock()
	if cut {
		h.receiver.Cancel(ticket.GetTransferId())
	}
	return ticket, nil
}

// lose ends an arrival that brought nothing.
func (s *Service) lose(h *shelf, id stock.ArrivalID) {
	s.metrics.lost.Inc()
	s.arrivalIs(h, func() { h.stock.Drained(id); delete(s.puts, id) })
}

// arrivalIs changes the stock for an arrival.
func (s *Service) arrivalIs(h *shelf, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.used = time.Now()
	change()
	s.noteChange()
}

func (s *Service) fetch(ctx context.Context, request *kvtransferv1.FetchRequest) (bytes uint64, err error) {
	if err := worker.CheckEpoch(request.GetStoreEpoch(), s.deps.Identity.Epoch); err != nil {
		return 0, err
	}
	tokens, err := parsePrefix(request.GetPrefix())
	if err != nil {
		return 0, err
	}
	if err := checkTicket(request.GetTicket(), request.GetPrefix()); err != nil {
		return 0, err
	}
	if _, has := ctx.Deadline(); !has {
		bounded, cancel := context.WithTimeout(ctx, s.cfg.FetchTimeout)
		defer cancel()
		ctx = bounded
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h, reading, err := s.read(request, tokens, cancel)
	if err != nil {
		return 0, err
	}
	defer s.arrivalIs(h, func() { h.stock.Done(reading.ID); delete(s.fetches, reading.ID) })
	return s.send(ctx, h, reading, request.GetTicket())
}

// checkTicket finds what is wrong with a ticket whatever is held. Its errors are
// gRPC statuses.
func checkTicket(ticket *kvtransferv1.Ticket, prefix *kvtransferv1.Prefix) error {
	switch {
	case ticket == nil:
		return rpc.InvalidArgument("ticket", "is missing: reserve blocks first")
	case len(ticket.GetAddresses()) == 0:
		return rpc.InvalidArgument("ticket.addresses", "is empty: nobody can be sent to")
	case ticket.GetLayoutDigest() != prefix.GetLayoutDigest():
		return rpc.InvalidArgument("ticket.layout_digest", fmt.Sprintf("is %#x, the prefix's is %#x", ticket.GetLayoutDigest(), prefix.GetLayoutDigest()))
	case int64(ticket.GetBlocks()) > int64(len(prefix.GetTokenIds())): // a block has one token at least
		return rpc.InvalidArgument("ticket.blocks", fmt.Sprintf("is %d, the prefix has %d tokens: reserve for the same prefix", ticket.GetBlocks(), len(prefix.GetTokenIds())))
	case ticket.GetHeldBlocks() > ticket.GetBlocks():
		return rpc.InvalidArgument("ticket.held_blocks", fmt.Sprintf("%d of %d blocks cannot be held", ticket.GetHeldBlocks(), ticket.GetBlocks()))
	}
	return nil
}

// read takes the blocks that a fetch asks for. cut ends the fetch from outside.
func (s *Service) read(request *kvtransferv1.FetchRequest, tokens []int32, cut context.CancelCauseFunc) (*shelf, stock.Reading, error) {
	ticket := request.GetTicket()
	h, err := s.shelfFor(request, len(tokens))
	if err != nil {
		return nil, stock.Reading{}, err
	}
	prefix := stock.NewPrefix(h.layout, h.blocks, request.GetPrefix().GetSalt(), tokens)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return nil, stock.Reading{}, err
	}
	blocks := int(ticket.GetBlocks())
	if s.shelf != h { // it gave way meanwhile
		s.metrics.missed(blocks)
		return nil, stock.Reading{}, missing(0, blocks)
	}
	h.used = time.Now()
	reading, held, verdict := h.stock.Read(prefix)
	switch verdict {
	case stock.Taken:
	case stock.Missing:
		s.metrics.missed(blocks - held)
		return nil, stock.Reading{}, missing(held, blocks)
	default:
		return nil, stock.Reading{}, rpc.Error(codes.ResourceExhausted, ReasonBusy, "too many transfers out of this store at once: ask again later, or compute", busyRetry)
	}
	s.metrics.hit(blocks - int(ticket.GetHeldBlocks()))
	s.fetches[reading.ID] = cut
	s.noteChange()
	return h, reading, nil
}

// shelfFor is the shelf that may have what a fetch of so many tokens asks for. Its
// errors are gRPC statuses.
func (s *Service) shelfFor(request *kvtransferv1.FetchRequest, tokens int) (*shelf, error) {
	asked, digest := request.GetTicket().GetBlocks(), request.GetPrefix().GetLayoutDigest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return nil, err
	}
	h := s.shelf
	if h == nil {
		s.metrics.missed(int(asked))
		return nil, missing(0, int(asked))
	}
	if h.digest != digest {
		return nil, mismatch(h, fmt.Sprintf("a model with layout digest %#x", digest))
	}
	if err := checkWhole(tokens, h.layout.BlockTokens); err != nil {
		return nil, err
	}
	if blocks := tokens / h.layout.BlockTokens; int64(asked) != int64(blocks) {
		return nil, rpc.InvalidArgument("ticket.blocks", fmt.Sprintf("is %d, the prefix has %d: reserve for the same prefix", asked, blocks))
	}
	return h, nil
}

// send sends blocks to the ticket's receiver. It returns when none is read any
// more.
func (s *Service) send(ctx context.Context, h *shelf, reading stock.Reading, ticket *kvtransferv1.Ticket) (bytes uint64, err error) {
	// What comes out of the store is what came in, whatever the receiver would like:
	// it may hand it on.
	native := proto.CloneOf(ticket)
	native.Encoding = kvtransferv1.Encoding_ENCODING_NATIVE
	transfer, err := h.sender.Open(ctx, native, rpc.RequestID(ctx))
	if err != nil {
		return 0, fetchError(ctx, err)
	}
	err = sendAll(ctx, transfer, h.layout.Layers, int(ticket.GetHeldBlocks()), slices.Clone(reading.Blocks))
	sent := transfer.Stats().Bytes
	s.metrics.sent(sent)
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
		return rpc.Error(codes.Unavailable, worker.ReasonTransferRefused, fmt.Sprintf("the receiver refuses the KV: %v", refused), 0)
	}
	return rpc.Error(codes.Unavailable, worker.ReasonTransferFailed, fmt.Sprintf("the KV did not reach the receiver: %v", err), 0)
}
