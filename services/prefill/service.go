package prefill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// Deps are the parts that a prefill worker uses.
type Deps struct {
	// Deps.Identity has KVAddresses if the receiver has its own server (RegisterKV). Otherwise
	// Register adds the receiver too.
	workerdriver.Deps
	// Exchange is with decode workers and block stores.
	kvtransfer.Exchange
	// KVMapPages writes KV into the pages of decode workers on this host that share them.
	// KVOnlyMapped, for tests, refuses workers that do not share their pages.
	KVMapPages, KVOnlyMapped bool
	// Stores calls notify with the block stores for the engine's layout, as soon as it knows
	// them and whenever they change. It returns the error of ctx when that ends. notify does
	// not block. Nil: the worker uses no stores.
	Stores func(ctx context.Context, notify func([]offload.Store)) error
	// DialStore connects to the calls of a block store, which may have another address or
	// security than its receiver of KV. Nil: Dial.
	DialStore func(address string) (*grpc.ClientConn, error)
}

// Service is one prefill worker.
type Service struct {
	*workerdriver.Member
	server  *server
	sender  *kvtransfer.Sender
	storing *storing // nil: there are no stores
	deps    Deps
}

// New builds the worker. Nothing runs before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	layout := deps.Engine.Capacity().Layout
	if err := cfg.Validate(layout.BlockTokens); err != nil {
		return nil, err
	}
	sending := kvtransfer.SenderConfig{
		WorkerID: deps.Identity.ID, Epoch: deps.Identity.Epoch, Layout: layout, Dial: deps.Dial, Registered: deps.Registered, Streams: deps.KVConnections, Logger: deps.Logger,
		OnlyMapped: deps.KVOnlyMapped,
	}
	if deps.KVMapPages {
		sending.MapPages = kvtransfer.MapPages
	}
	sender, err := kvtransfer.NewSender(sending, deps.Engine.Pages())
	if err != nil {
		return nil, fmt.Errorf("kv sender: %w", err)
	}
	sent, err := kvtransfer.NewSentBytes(deps.Registerer, deps.Identity.ID)
	if err != nil {
		return nil, err
	}
	running := &transfers{byID: make(map[scheduler.SequenceID]*outgoing)}
	s := &Service{sender: sender, deps: deps}
	if deps.Stores != nil {
		if s.storing, err = newStoring(cfg, deps, sender); err != nil {
			return nil, err
		}
	}
	s.Member, err = workerdriver.NewMember(s.storing.saving(workerdriver.MemberConfig{
		Deps: deps.Deps, Limits: cfg.Limits, Mirrors: running.mirrorsOf, LayerDone: running.layerDone, LayersDone: running.layersDone,
	}))
	if err != nil {
		return nil, err
	}
	s.server = &server{spec: deps.Engine.Model(), driver: s.Driver(), sender: sender, running: running, epoch: deps.Identity.Epoch, tracer: deps.Tracer, logger: deps.Logger, sent: sent, grammars: deps.Grammars}
	if s.storing != nil {
		s.storing.driver = s.Driver() // before anything else
		s.storing.putEnded = s.putEnded
		s.server.storing = s.storing
	}
	return s, nil
}

// Register adds the worker's services to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.Member.Register(registrar)
	workerv1.RegisterPrefillServer(registrar, s.server)
	s.RegisterDecode(registrar, nil)
	if len(s.deps.Identity.KVAddresses) == 0 {
		s.RegisterKV(registrar)
	}
}

// RegisterKV adds the receiver of KV from block stores to the gRPC server that listens on
// the KVAddresses of Deps.Identity.
func (s *Service) RegisterKV(registrar grpc.ServiceRegistrar) {
	if s.storing != nil {
		s.storing.receiver.Register(registrar)
	}
}

// KVMessageBytes is the largest message that the server of RegisterKV must accept; 0 without
// stores.
func (s *Service) KVMessageBytes() int {
	if s.storing == nil {
		return 0
	}
	return s.storing.receiver.MaxMessageBytes()
}

// senderClose bounds how long closing the sender's connections may take.
const senderClose = 2 * time.Second

// putEnded ends the session of a put that began it when the worker had drained.
func (s *Service) putEnded() {
	if d := s.Driver(); d.Draining() && d.Remaining() == 0 {
		s.sender.EndSessions(context.Background())
	}
}

// Run computes and sends until ctx ends. It returns when all goroutines that it started have
// ended. The sessions that a drained worker has with receivers of KV end with their transfers.
func (s *Service) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	var storeErr error
	if s.storing != nil {
		beside.Go(func() { storeErr = s.storing.run(ctx) })
	}
	beside.Go(func() { s.WhenDrained(ctx, s.sender.EndSessions) })
	runErr := s.Member.Run(ctx)
	stop() // Member.Run may have ended without ctx
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), senderClose)
	defer cancel()
	if err := s.sender.Close(closing); err != nil {
		s.deps.Logger.Warn("kv sender did not close in time", "error", err)
	}
	beside.Wait() // also for puts, which end with the sender
	return errors.Join(runErr, storeErr)
}
