package decode

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// Deps are the parts that a decode worker uses.
type Deps struct {
	// Deps.Identity has KVAddresses if the receiver has its own server (RegisterKV). Otherwise
	// Register adds the receiver too.
	workerdriver.Deps
	// Exchange is with prefill workers, which dial.
	kvtransfer.Exchange
	// KVPagesSocket is the path of the socket that ServePages listens on; empty: the pages are
	// not shared with other processes.
	KVPagesSocket string
}

// Service is one decode worker.
type Service struct {
	*workerdriver.Member
	receiver *kvtransfer.Receiver
	kvApart  bool // the receiver has its own server
}

// New builds the worker. Nothing runs before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	capacity := deps.Engine.Capacity()
	if err := cfg.Validate(capacity.Layout.BlockTokens); err != nil {
		return nil, err
	}
	encoding, err := cfg.encoding()
	if err != nil {
		return nil, err
	}
	maxDrafts, err := cfg.MaxDrafts(capacity.MaxDrafts, capacity.MakesDrafts)
	if err != nil {
		return nil, err
	}
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: deps.Identity.ID, Epoch: deps.Identity.Epoch, Addresses: deps.Identity.ReceivesKVAt(), Layout: capacity.Layout,
		Lease: cfg.TransferLease, MaxIdle: cfg.TransferIdle, HolderBlocks: max(int(cfg.ReserveShare*float64(capacity.Blocks)), 1), CreditBytes: cfg.TransferCreditBytes, Encoding: encoding,
		// Each holds a block of its own at least.
		MaxReservations: capacity.Blocks,
		MaxStreams:      deps.KVMaxStreams,
		NoLoans:         deps.KVNoLoans,
		PagesSocket:     deps.KVPagesSocket,
		Logger:          deps.Logger,
		Tracer:          deps.Tracer,
	}, deps.Engine.Pages())
	if err != nil {
		return nil, fmt.Errorf("kv receiver: %w", err)
	}
	if err := receiver.RegisterMetrics(deps.Registerer); err != nil {
		return nil, err
	}
	member, err := workerdriver.NewMember(workerdriver.MemberConfig{Deps: deps.Deps, Limits: cfg.Limits, MaxDrafts: maxDrafts})
	if err != nil {
		return nil, err
	}
	return &Service{Member: member, receiver: receiver, kvApart: len(deps.Identity.KVAddresses) > 0}, nil
}

// Register adds the worker's services to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.Member.Register(registrar)
	if !s.kvApart {
		s.receiver.Register(registrar)
	}
	s.RegisterDecode(registrar, s.receiver)
}

// RegisterKV adds the receiver of KV to the gRPC server that listens on
// the KVAddresses of Deps.Identity.
func (s *Service) RegisterKV(registrar grpc.ServiceRegistrar) { s.receiver.Register(registrar) }

// ServePages lets prefill workers of this host map the KV pages, until the listener, on
// Deps.KVPagesSocket, is closed.
func (s *Service) ServePages(ctx context.Context, listener *net.UnixListener) error {
	return s.receiver.ServePages(ctx, listener)
}

// KVMessageBytes is the largest message that the server of RegisterKV must accept.
func (s *Service) KVMessageBytes() int { return s.receiver.MaxMessageBytes() }

// Run computes and receives until ctx ends. It returns when all that it started
// has stopped.
func (s *Service) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var receiving sync.WaitGroup
	var receiveErr error
	receiving.Go(func() { receiveErr = s.receiver.Run(ctx) })
	err := s.Member.Run(ctx)
	stop() // Run may have ended without ctx
	receiving.Wait()
	if err != nil {
		return err
	}
	return receiveErr
}
