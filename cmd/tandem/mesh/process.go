package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/decode"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/prefill"
	"github.com/tandem-serving/tandem/services/router"
)

// process is what all parts of one process share.
type process struct {
	options  Options
	stuck    *stuck
	logger   *slog.Logger
	registry *prometheus.Registry
	tracing  *telemetry.Tracing // nil: nothing is traced
	engines  *engines
	members  *membership.Client
	signals  *signals.Conn
	services []lifecycle.Service
	sockets  socketFolder // on which KV is received
	routes   bool         // there is a router among the parts
	api      http.Handler // the router's HTTP API; nil without a router
	// leaveHTTP tells clients of the HTTP API to connect elsewhere; nil: there is none.
	leaveHTTP func()
	ready     atomic.Bool // every part serves
	served    atomic.Bool // the router is connected to a decode worker
}

// connect joins the process to etcd and NATS. etcd must answer in time; NATS may
// come later.
func (p *process) connect(ctx context.Context, name string, tracer trace.Tracer) error {
	starting, cancel := context.WithTimeout(ctx, p.options.StartTimeout)
	defer cancel()
	members, err := membership.Connect(starting, membership.Config{Endpoints: p.options.Etcd, LeaseTTL: p.options.LeaseTTL}, p.logger)
	if err != nil {
		return err
	}
	p.members = members
	conn, err := signals.Connect(signals.Config{URLs: p.options.NATS, Name: name, Registerer: p.registry, Tracer: tracer}, p.logger)
	if err != nil {
		return errors.Join(err, members.Close())
	}
	p.signals = conn
	return nil
}

// disconnect undoes connect.
func (p *process) disconnect() error {
	if p.signals != nil {
		p.signals.Close()
	}
	if p.members != nil {
		return p.members.Close()
	}
	return nil
}

// add appends services, to be started in order and stopped in reverse.
func (p *process) add(services ...lifecycle.Service) {
	p.services = append(p.services, services...)
}

// workerService is what all workers have in common.
type workerService interface {
	Register(grpc.ServiceRegistrar)
	Run(context.Context) error
	Join(func(*controlv1.WorkerRecord) worker.Registration)
	Drain(ctx context.Context, cleanup time.Duration)
}

// deregister bounds how long removing a record from etcd may take.
const deregister = 2 * time.Second

// workerPlace is where a worker serves.
type workerPlace struct {
	listener  net.Listener
	advertise string
	kv        *kvEndpoint // nil: it receives no KV
}

// receives says whether workers of a role receive KV: all do, prefill workers from
// block stores.
func receives(role controlv1.Role) bool { return role != controlv1.Role_ROLE_ROUTER }

// addWorker adds a prefill or decode worker.
func (p *process) addWorker(role controlv1.Role, id string, place workerPlace) error {
	e, err := p.engines.add(id, role)
	if err != nil {
		return err
	}
	epoch := worker.NewEpoch()
	logger := withAttribute(p.logger, slog.String("worker", id))
	identity := worker.Identity{
		ID: id, Epoch: epoch, Role: role, Addresses: []string{place.advertise},
		Engine: p.options.Engine.Name, Version: telemetry.ReadBuild().String(),
	}
	service, err := p.newWorker(identity, e, place.kv, logger)
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	p.serveWorker(role, id, place, service, logger)
	return nil
}

// serveWorker serves a worker, and has it join the mesh and leave it.
func (p *process) serveWorker(role controlv1.Role, id string, place workerPlace, service workerService, logger *slog.Logger) {
	server := rpc.NewServer(rpc.ServerConfig{
		Name: roleName(role), Logger: logger, Registerer: p.registry, MaxReceiveBytes: workerMessageBytes,
	})
	service.Register(server)
	if receiver, is := service.(receivesKV); is && place.kv != nil {
		p.addKV(id, roleName(role), place.kv, receiver, logger)
	}
	p.add(
		lifecycle.Service{
			Name: id + " server", Run: func(context.Context) error { return server.Serve(place.listener) },
			Stop: server.Stop,
		},
		// Stopped before the servers, since KV streams last as long as the worker.
		lifecycle.Service{Name: id, Run: service.Run},
		lifecycle.Service{
			Name: id + " membership",
			Start: func(context.Context) error {
				service.Join(func(record *controlv1.WorkerRecord) worker.Registration { return p.members.Register(record) })
				server.SetServing(true)
				return nil
			},
			Stop: func(ctx context.Context) error {
				server.SetServing(false)
				service.Drain(ctx, deregister)
				return nil
			},
		},
	)
}

// workerMessageBytes bounds one message to or from a worker that is no KV: the tokens
// of a long prompt, or the list of a prefix cache.
const workerMessageBytes = 64 << 20

func (p *process) newWorker(identity worker.Identity, e engine.Engine, kv *kvEndpoint, logger *slog.Logger) (workerService, error) {
	publisher := p.signals.NewPublisher(identity.ID, identity.Epoch)
	tracer := p.tracing.Tracer("tandem-"+roleName(identity.Role), identity.ID)
	if identity.Role == controlv1.Role_ROLE_PREFILL {
		return prefill.New(p.options.Prefill, prefill.Deps{
			Identity: identity, KVAddresses: kv.addresses, Engine: e, Signals: publisher, Logger: logger, Registerer: p.registry, Tracer: tracer,
			Stores: p.watchStores,
			// Calls go to where the store listens, whatever KV goes over.
			DialStore: func(address string) (*grpc.ClientConn, error) {
				return rpc.Dial(address, rpc.ClientConfig{Name: "prefill", Logger: logger, Registerer: p.registry})
			},
			KVConnections: p.options.KV.Connections,
			KVMaxStreams:  p.options.KV.MaxStreams,
			KVNoLoans:     !p.options.KV.lends(),
			Dial:          p.kvDial(kvtransfer.Dialing(rpc.ClientConfig{Name: "prefill", Logger: logger, Registerer: p.registry})),
		})
	}
	return decode.New(p.options.Decode, decode.Deps{
		Identity: identity, KVAddresses: kv.addresses, Engine: e, Signals: publisher, Logger: logger, Registerer: p.registry, Tracer: tracer,
		KVMaxStreams: p.options.KV.MaxStreams, KVNoLoans: !p.options.KV.lends(),
	})
}

func roleName(role controlv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))
}

// requestBytes bounds a request of the public API. A prompt that fills any
// context is far smaller.
const requestBytes = 8 << 20

// addRouter adds a router that listens on listener.
func (p *process) addRouter(id string, listener net.Listener, advertise string) error {
	p.routes = true
	spec := p.engines.spec
	epoch := worker.NewEpoch()
	logger := withAttribute(p.logger, slog.String("router", id))
	service, err := router.New(p.options.Router, router.Deps{
		ID: id, Models: []router.Model{{
			Spec: spec, Tokenizer: p.engines.tokenizer, Aliases: p.options.ModelAliases,
			Chat: p.engines.chat, ChatError: p.engines.chatError,
		}},
		Members: p.members, Signals: p.signals, Queue: p.signals.NewPublisher(id, epoch),
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, rpc.ClientConfig{Name: "router", Logger: logger, Registerer: p.registry, MaxReceiveBytes: workerMessageBytes})
		},
		Logger: logger, Registerer: p.registry, Tracing: p.routerTracing(id),
	})
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	server := rpc.NewServer(rpc.ServerConfig{
		Name: "router", Logger: logger, Registerer: p.registry, MaxReceiveBytes: requestBytes, OversizeFields: router.OversizeFields(),
		// A watch lasts until one side goes; the process has one itself.
		Unlogged: []string{controlv1.Control_WatchWorkers_FullMethodName},
	})
	service.Register(server)
	p.api = service.HTTP()
	p.add(
		lifecycle.Service{
			Name: "router server", Run: func(context.Context) error { return server.Serve(listener) },
			Stop: server.Stop,
		},
		// Stopped before the server, since watchers watch as long as it runs.
		lifecycle.Service{Name: "router", Run: service.Run},
		p.routerRegistration(&controlv1.WorkerRecord{
			Id: id, Role: controlv1.Role_ROLE_ROUTER, Epoch: epoch, Addresses: []string{advertise},
			State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: spec.Name, ModelDigest: spec.Digest,
			Version: telemetry.ReadBuild().String(),
		}, server, service),
	)
	return nil
}

// routerRegistration keeps the router's record, and drains the router before its
// server stops.
func (p *process) routerRegistration(record *controlv1.WorkerRecord, server *rpc.Server, service *router.Service) lifecycle.Service {
	var registration *membership.Registration
	return lifecycle.Service{
		Name: "router membership",
		Start: func(context.Context) error {
			registration = p.members.Register(record)
			server.SetServing(true)
			return nil
		},
		Stop: func(ctx context.Context) error {
			// Clients that keep a connection go to another router with their next request.
			// Requests that run are finished here; one that still comes, over a connection
			// whose client was not told yet, is refused by the router with UNAVAILABLE. What
			// lists the routers sees that this one takes nothing.
			server.Leave()
			if p.leaveHTTP != nil {
				p.leaveHTTP()
			}
			registration.Update(func(record *controlv1.WorkerRecord) { record.State = controlv1.WorkerState_WORKER_STATE_DRAINING })
			stopErr := service.Stop(ctx)
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), deregister)
			defer cancel()
			if err := registration.Close(cleanup); err != nil { // etcd is away: the lease ends it
				p.logger.Warn("router could not leave the membership", "error", err)
			}
			return stopErr
		},
	}
}
