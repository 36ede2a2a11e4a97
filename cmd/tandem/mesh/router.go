package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router"
	"github.com/tandem-serving/tandem/services/router/control"
)

// writeBufferBytes is the size of the write buffer of a client's connection to the router. All
// connections that have a token to send at the same time hold one.
const writeBufferBytes = 8 << 10

// requestBytes bounds a request of the public API. A prompt that fills any
// context is far smaller.
const requestBytes = 8 << 20

// newRouter makes the router with its servers for clients and operators, and its membership.
func (p *process) newRouter(ctx context.Context) (services []lifecycle.Service, err error) {
	at, spec := p.parts[0], p.model.spec
	logger := p.logger.With(slog.String("router", at.id))
	var version atomic.Pointer[kvtransferv1.Layout] // of the served model; nil until it is known
	var place *membership.Member
	self, members := at.identity(), router.Members(p.members)
	if p.lastView != nil {
		members = p.lastView
	}
	log, err := p.newEventLog(self, logger)
	if err != nil {
		return nil, err
	}
	if err := p.newAuth(); err != nil {
		return nil, err
	}
	dial := func(roles ...identity.Role) func(string) (*grpc.ClientConn, error) {
		return func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, rpc.ClientConfig{
				Name: "router", Logger: logger, Registerer: p.registry, MaxReceiveBytes: workerMessageBytes, Credentials: at.peerCredentials(roles...),
			})
		}
	}
	// To find requests at other routers. Clients' keys go there, so the server must prove that it
	// is a router.
	var dialRouter func(string) (*grpc.ClientConn, error)
	if at.tls != nil {
		dialRouter = dial(identity.Router)
	}
	service, err := router.New(p.options.Router, router.Deps{
		ID: at.id, Log: log, Models: []router.Model{{
			Spec: spec, Tokenizer: p.model.tokenizer, Aliases: p.options.ModelAliases, ToolCallParser: p.options.ToolCallParser,
			Chat: p.model.chat, ChatError: p.model.chatError,
		}},
		Members: members, Signals: p.signals, Publisher: p.signals.NewPublisher(at.id, self.Epoch),
		Auth: p.auth, Keys: p.members,
		Announce: func(_, digest, class string) {
			version.Store(&kvtransferv1.Layout{ModelDigest: digest, ArithmeticClass: class})
			place.Changed()
		},
		Dial: dial(identity.Prefill, identity.Decode, identity.KVTransfer), DialRouter: dialRouter,
		Logger: logger, Registerer: p.registry,
		Tracing: router.Tracing{
			Tracer: p.tracing.Tracer("tandem-router", at.id), Share: p.options.Trace.Share, Tenant: p.options.Trace.Tenant,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	place = membership.NewMember(membership.MemberConfig{
		Identity: self,
		Describe: func(record *controlv1.WorkerRecord) {
			record.Model, record.ModelDigest = spec.Name, spec.Digest
			if v := version.Load(); v != nil {
				record.ModelDigest, record.Layout = v.GetModelDigest(), v
			}
		},
		Refuse: func(bool) {}, Idle: service.Stop, Cut: func() {}, Logger: logger, // Stop refuses and cuts
	})
	server := rpc.NewServer(rpc.ServerConfig{
		Name: "router", Authenticate: service.Authenticate(), Logger: logger, Registerer: p.registry, MaxReceiveBytes: requestBytes, OversizeFields: router.OversizeFields(),
		Limits: p.options.Router.Limits(), BufferBytes: writeBufferBytes,
		Credentials: at.serverCredentials(false),
	})
	service.Register(server)
	server.SetReady(false)
	p.api, p.watchWorkers, p.running, p.setReady = service.HTTP(), service.WatchWorkers, service.Running, server.SetReady
	if p.sizes == nil {
		p.sizes = service.Sizes
	}
	if p.control != nil {
		services = append(services, p.controlServer(service, logger))
	}
	if p.auth != nil && p.makesFirstKey { // last, so that it is revoked whatever fails from now on
		made, err := p.makeFirstKey(ctx)
		if err != nil {
			return nil, err
		}
		services = append(services, made...)
	}
	return append(services,
		lifecycle.Service{Name: "router server", Run: func(context.Context) error { return server.Serve(at.listener) }, Stop: server.Stop},
		// It stops before the server, since watchers watch until it ends.
		lifecycle.Service{Name: "router", Run: service.Run},
		p.membership("router", place, server, func() {
			// Clients with a connection send their next request to another router. Running
			// requests finish here. The router refuses with UNAVAILABLE those that clients still
			// send because they do not know yet. Lists of routers show that this one drains.
			server.Leave()
			if p.leaveHTTP != nil {
				p.leaveHTTP()
			}
		}),
	), nil
}

// Bounds of what operators can make the router hold: each call, and each unread answer.
const (
	controlBytes       = 64 << 20
	controlConnections = 256
)

// controlServer serves operators. It starts before the router, so that it stops after it and
// operators can watch a drain of the whole mesh to its end.
func (p *process) controlServer(service *router.Service, logger *slog.Logger) lifecycle.Service {
	server := rpc.NewServer(rpc.ServerConfig{
		Name: "control", Logger: logger, Registerer: p.registry, Credentials: p.parts[0].serverCredentials(false),
		Limits: rpc.Limits{ReceiveBytes: controlBytes, Connections: controlConnections}, Authenticate: p.authenticate(), Audit: control.Audit(logger),
		// A watch lasts until one side goes.
		Unlogged: []string{controlv1.Control_WatchWorkers_FullMethodName},
	})
	service.RegisterControl(server)
	return lifecycle.Service{
		Name:  "control server",
		Start: func(context.Context) error { server.SetServing(true); return nil },
		Run:   func(context.Context) error { return server.Serve(p.control) },
		Stop:  server.Stop,
	}
}
