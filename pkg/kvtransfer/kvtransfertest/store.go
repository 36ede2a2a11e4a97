package kvtransfertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// StoreConfig configures a Store. All fields are required.
type StoreConfig struct {
	// Peer is the store's identity.
	Peer   offload.Store
	Layout kvcache.Layout
	// Blocks is the capacity, MaxPuts the limit of concurrent puts.
	Blocks, MaxPuts int
	// Lease of reservations for puts.
	Lease time.Duration
	// Dial connects to KV receivers.
	Dial func(address string) (*grpc.ClientConn, error)
}

// Store is a KV block store for tests of its clients. It answers like services/kvtransfer,
// whose tests compare the two, but never evicts, accepts one layout, and does not limit
// fetches. It is safe for concurrent use.
type Store struct {
	kvtransferv1.UnimplementedBlockStoreServer
	cfg      StoreConfig
	receiver *kvtransfer.Receiver
	sender   *kvtransfer.Sender

	mu       sync.Mutex
	held     map[kvcache.Hash]kvcache.BlockID
	arriving map[kvcache.Hash]bool
	next     kvcache.BlockID // first page never used
}

// NewStore returns an empty store. It starts nothing: call Register and Run.
func NewStore(cfg StoreConfig) (*Store, error) {
	s := &Store{cfg: cfg, held: map[kvcache.Hash]kvcache.BlockID{}, arriving: map[kvcache.Hash]bool{}}
	pages := NewPages(cfg.Layout, cfg.Blocks)
	var err error
	s.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: cfg.Peer.ID, Epoch: cfg.Peer.Epoch, Addresses: cfg.Peer.Addresses, Layout: cfg.Layout, Lease: cfg.Lease, MaxReservations: cfg.MaxPuts,
	}, pages)
	if err != nil {
		return nil, err
	}
	s.sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{WorkerID: cfg.Peer.ID, Epoch: cfg.Peer.Epoch, Layout: cfg.Layout, Dial: cfg.Dial}, pages)
	return s, err
}

// Register adds the store's services to a gRPC server.
func (s *Store) Register(registrar grpc.ServiceRegistrar) {
	kvtransferv1.RegisterBlockStoreServer(registrar, s)
	s.receiver.Register(registrar)
}

// Run serves the receiver until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	err := s.receiver.Run(ctx)
	closed, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.sender.Close(closed) // it only reports cut sessions
	return err
}

// Hashes returns the hashes of the stored blocks.
func (s *Store) Hashes() []kvcache.Hash {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.held))
}

// Streams is how many streams of senders there are.
func (s *Store) Streams() int { return s.receiver.Stats().Streams }

// Offer implements the BlockStore service.
func (s *Store) Offer(ctx context.Context, request *kvtransferv1.OfferRequest) (*kvtransferv1.OfferResponse, error) {
	if err := membership.CheckEpoch(request.GetStoreEpoch(), s.cfg.Peer.Epoch); err != nil {
		return nil, err
	}
	hashes := s.hashes(request.GetPrefix())
	s.mu.Lock()
	defer s.mu.Unlock()
	blocks := s.find(hashes)
	lacking := hashes[len(blocks):]
	switch {
	case len(lacking) == 0:
		return nil, rpc.Error(codes.AlreadyExists, api.ReasonBlocksHeld, "the blocks are here", 0)
	case s.arriving[lacking[0]]:
		return nil, rpc.Error(codes.Aborted, api.ReasonBlocksArriving, "some of the blocks come", time.Second)
	case int(s.next)+len(lacking) > s.cfg.Blocks:
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonStoreFull, "it is full", time.Second)
	}
	held := len(blocks)
	for i := range lacking {
		blocks = append(blocks, s.next+kvcache.BlockID(i))
	}
	end := sync.OnceFunc(func() { s.end(lacking, nil) })
	ticket, err := s.receiver.Reserve(kvtransfer.Reservation{
		RequestID: rpc.RequestID(ctx), Blocks: blocks, HeldBlocks: held, PromptBlocks: len(blocks),
		Committed: func(kvtransfer.Arrival) { s.end(lacking, blocks[held:]) },
		Failed:    func(error) { end() },
		Drained:   end,
	})
	if err != nil {
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonStoreBusy, err.Error(), 100*time.Millisecond)
	}
	s.next += kvcache.BlockID(len(lacking))
	for _, hash := range lacking {
		s.arriving[hash] = true
	}
	return &kvtransferv1.OfferResponse{Ticket: ticket}, nil
}

// end finishes a put. hashes is empty if it failed.
func (s *Store) end(hashes []kvcache.Hash, blocks []kvcache.BlockID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, hash := range hashes {
		delete(s.arriving, hash)
		if blocks != nil {
			s.held[hash] = blocks[i]
		}
	}
}

// Fetch implements the BlockStore service.
func (s *Store) Fetch(ctx context.Context, request *kvtransferv1.FetchRequest) (*kvtransferv1.FetchResponse, error) {
	if err := membership.CheckEpoch(request.GetStoreEpoch(), s.cfg.Peer.Epoch); err != nil {
		return nil, err
	}
	hashes := s.hashes(request.GetPrefix())
	s.mu.Lock()
	blocks := s.find(hashes)
	s.mu.Unlock()
	if len(blocks) < len(hashes) {
		return nil, storeclient.MissingStatus(len(blocks), len(hashes))
	}
	transfer, err := s.sender.Open(ctx, request.GetTicket(), rpc.RequestID(ctx))
	if err == nil {
		err = transfer.SendAll(ctx, s.cfg.Layout.Layers, int(request.GetTicket().GetHeldBlocks()), blocks)
	}
	if err != nil {
		return nil, rpc.Error(codes.Unavailable, api.ReasonTransferFailed, fmt.Sprintf("the KV did not reach the receiver: %v", err), 0)
	}
	return &kvtransferv1.FetchResponse{Bytes: transfer.Stats().Bytes}, nil
}

func (s *Store) hashes(prefix *kvtransferv1.Prefix) []kvcache.Hash {
	tokens := make([]int32, len(prefix.GetTokenIds()))
	for i, id := range prefix.GetTokenIds() {
		tokens[i] = int32(id)
	}
	l := s.cfg.Layout
	return kvcache.PromptHashes(l.ModelDigest, l.ArithmeticClass, prefix.GetSalt(), tokens, l.BlockTokens)
}

// find returns the pages of the leading blocks that are stored. Requires s.mu.
func (s *Store) find(hashes []kvcache.Hash) (blocks []kvcache.BlockID) {
	for _, hash := range hashes {
		block, held := s.held[hash]
		if !held {
			break
		}
		blocks = append(blocks, block)
	}
	return blocks
}
