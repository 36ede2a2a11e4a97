package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"github.com/tandem-serving/tandem/services/decode"
	store "github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/prefill"
)

// workerService is what all workers have in common.
type workerService interface {
	Register(grpc.ServiceRegistrar)
	Run(context.Context) error
	receivesKV
	member
}

// member is the place of a part in the membership.
type member interface {
	Join(announce func(*controlv1.WorkerRecord) membership.Announcement)
	Drain(ctx context.Context, cleanup time.Duration)
}

// deregister bounds how long removing a record from etcd may take, which may begin when
// --stop-timeout is over. It is less than the grace of lifecycle.Run.
const deregister = 2 * time.Second

// workerMessageBytes bounds one message to or from a worker that is no KV: the tokens
// of a long prompt, or the list of a prefix cache.
const workerMessageBytes = 64 << 20

// workerConnections bounds those of routers, and of prefill workers that call a store: each has
// one.
const workerConnections = 4096

func (p *process) newWorkers(role controlv1.Role) func(context.Context) ([]lifecycle.Service, error) {
	return func(context.Context) (services []lifecycle.Service, err error) {
		for _, w := range p.of(role) {
			made, err := p.newWorker(w)
			if err != nil {
				return nil, err
			}
			services = append(services, made...)
		}
		return services, nil
	}
}

// newWorker makes a worker: what serves it, and has it join the mesh and leave it.
func (p *process) newWorker(w *part) (services []lifecycle.Service, err error) {
	var e engine.Engine // nil: a store computes nothing
	if w.role != controlv1.Role_ROLE_KVTRANSFER {
		if e, err = p.newEngine(w); err != nil {
			return nil, err
		}
	}
	return p.workerServices(w, e, p.registry)
}

// workerServices are those of a worker with an engine. Its own metrics go to metrics, those that
// workers share to the process's registry.
func (p *process) workerServices(w *part, e engine.Engine, metrics prometheus.Registerer) ([]lifecycle.Service, error) {
	role, logger := api.Name(w.role), p.logger.With(slog.String("worker", w.id))
	service, err := p.newWorkerService(w, e, metrics, logger)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.id, err)
	}
	server := rpc.NewServer(rpc.ServerConfig{
		Name: role, Logger: logger, Registerer: p.registry, MaxReceiveBytes: workerMessageBytes, Credentials: w.serverCredentials(true),
	})
	service.Register(server)
	listener := rpc.NewConnectionLimit(workerConnections, w.id, logger).Listener(w.listener)
	return append(p.kvServices(w, role, service, logger),
		lifecycle.Service{Name: w.id + " server", Run: func(context.Context) error { return server.Serve(listener) }, Stop: server.Stop},
		// Stopped before the servers, since KV streams last as long as the worker.
		lifecycle.Service{Name: w.id, Run: service.Run},
		p.membership(w.id, service, server, func() { server.SetServing(false) }),
	), nil
}

func (p *process) newWorkerService(w *part, e engine.Engine, metrics prometheus.Registerer, logger *slog.Logger) (workerService, error) {
	role, self := api.Name(w.role), w.identity()
	self.KVAddresses = w.kv.addresses
	var err error
	if w.log, err = p.newEventLog(self, logger); err != nil {
		return nil, err
	}
	publisher, tracer := p.signals.NewPublisher(w.id, self.Epoch), p.tracing.Tracer("tandem-"+role, w.id)
	client := rpc.ClientConfig{Name: role, Logger: logger, Registerer: p.registry}
	kvDial := func(roles ...identity.Role) func(string) (*grpc.ClientConn, error) {
		to := client
		to.Credentials = w.peerCredentials(roles...)
		return p.kvDial(kvtransfer.Dialing(to))
	}
	if e != nil {
		self.Engine = p.engines.Name()
	}
	deps := workerdriver.Deps{
		Identity: self, Engine: e, Grammars: p.model.grammars, Signals: publisher, Log: w.log, Logger: logger, Registerer: metrics, Tracer: tracer,
	}
	kv := p.options.KV
	exchange := kvtransfer.Exchange{KVConnections: kv.Connections, Registered: p.directory.Check, KVMaxStreams: kv.MaxStreams, KVNoLoans: !kv.Lends()}
	switch w.role {
	case controlv1.Role_ROLE_KVTRANSFER:
		exchange.Dial = kvDial(identity.Prefill)
		return store.New(p.options.Store, store.Deps{
			Identity: self, Exchange: exchange, Signals: publisher, Logger: logger, Registerer: metrics, Tracer: tracer,
		})
	case controlv1.Role_ROLE_PREFILL:
		exchange.Dial = kvDial(identity.Decode, identity.KVTransfer)
		return prefill.New(p.options.Prefill, prefill.Deps{
			Deps: deps, Exchange: exchange, KVMapPages: kv.Shares(),
			Stores: p.watchStores,
			// Calls go to where the store listens, whatever KV goes over.
			DialStore: func(address string) (*grpc.ClientConn, error) {
				store := client
				store.Credentials = w.peerCredentials(identity.KVTransfer)
				return rpc.Dial(address, store)
			},
		})
	default:
		if pages, can := e.Pages().(engine.Sharing); kv.Shares() && (!can || !pages.Shares()) {
			return nil, errors.New("--kv-transport: shm needs an engine with KV in memory that can be shared: the CPU engine on Linux; pass auto")
		}
		return decode.New(p.options.Decode, decode.Deps{
			Deps: deps, Exchange: exchange, KVPagesSocket: w.kv.pagesSocket(),
		})
	}
}

// membership has a part join the mesh once its server is about to serve, and leave it
// before that stops; leave comes first.
func (p *process) membership(name string, m member, server *rpc.Server, leave func()) lifecycle.Service {
	return lifecycle.Service{
		Name: name + " membership",
		Start: func(context.Context) error {
			m.Join(func(record *controlv1.WorkerRecord) membership.Announcement { return p.members.Register(record) })
			server.SetServing(true)
			return nil
		},
		Stop: func(ctx context.Context) error {
			leave()
			m.Drain(ctx, deregister)
			return nil
		},
	}
}

// identity is who the part is from now on.
func (w *part) identity() membership.Identity {
	return membership.Identity{
		ID: w.id, Epoch: membership.NewEpoch(), Role: w.role, Addresses: []string{w.advertise}, Version: telemetry.ReadBuild().String(),
	}
}

func (p *process) newStores(ctx context.Context) ([]lifecycle.Service, error) {
	count := len(p.of(controlv1.Role_ROLE_KVTRANSFER))
	if count == 0 {
		return nil, nil
	}
	left, _ := memory.Available(os.DirFS("/"))
	if err := p.options.Store.Fit(count, left); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	if p.engines != nil {
		if err := p.options.Store.CheckLayout(p.engines.Engines()[0].Capacity().Layout); err != nil { // all have one
			return nil, fmt.Errorf("--%w", err)
		}
	}
	return p.newWorkers(controlv1.Role_ROLE_KVTRANSFER)(ctx)
}

// watchStores calls notify with the block stores that take blocks. One that holds
// blocks of another layout is among them: it may take this one when those are not
// used any more, and refuses until then.
func (p *process) watchStores(ctx context.Context, notify func([]offload.Store)) error {
	return p.directory.Watch(ctx, func(view membership.View) {
		var stores []offload.Store
		for _, record := range view.Workers {
			if record.GetRole() == controlv1.Role_ROLE_KVTRANSFER && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING {
				stores = append(stores, offload.Store{ID: record.GetId(), Epoch: record.GetEpoch(), Addresses: record.GetAddresses(), LayoutDigest: record.GetLayoutDigest()})
			}
		}
		notify(stores)
	})
}
