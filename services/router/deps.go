package router

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/services/router/control"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// Deps is what a router works with.
type Deps struct {
	// ID is the router's worker id, for its log lines, and by which it tells its own reports from
	// those of others.
	ID string
	// Models that can be asked for, names unique.
	Models []Model
	// Members says which workers there are, and keeps the policy.
	Members Members
	// Auth says who calls. Nil: callers are not asked.
	Auth *auth.Authenticator
	// Keys keeps the API keys of clients. Nil: there are none.
	Keys Keys
	// Signals brings load reports and KV events. Nil: none come, and routing goes
	// by the router's own account.
	Signals Signals
	// Publisher gets what waits, and what other routers have to know. Nil: nobody is told.
	Publisher Publisher
	// Announce is called with the version of a model that this router serves, once it
	// has found one by itself, for other routers to hear of it. It must not block. Nil:
	// nobody is told.
	Announce func(model, digest, class string)
	// Dial makes a connection to a worker that the router closes. Its calls fail
	// at once while there is no connection.
	Dial func(address string) (*grpc.ClientConn, error)
	// DialRouter is Dial for another router, which gets what clients show to this one. Nil: Dial, or
	// with Auth no other router is asked for requests, since etcd's word alone is none on where
	// clients' keys may go.
	DialRouter func(address string) (*grpc.ClientConn, error)
	// Rand is the source of choices among equals, called by one goroutine at a
	// time. Nil: a source seeded at random.
	Rand routing.Rand
	// Log records what routing and the life of each request take in and do. Nil: nothing is
	// recorded.
	Log *eventlog.Log
	// Logger says of which router a line is; nil: none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
	// Tracing makes the spans of sampled requests.
	Tracing Tracing
}

type (
	// Model is one model that can be asked for.
	Model = preprocess.Model
	// Tracing says how requests are traced.
	Tracing = serving.Tracing
)

// Members is membership as the router needs it; *membership.Client is one,
// and *membership.LastView, which knows more at the start.
type Members interface {
	// Watch calls notify with each view until ctx ends.
	Watch(ctx context.Context, notify func(membership.View)) error
	// WatchPolicy calls notify with each policy and its revision until ctx ends.
	WatchPolicy(ctx context.Context, notify func(policy *controlv1.Policy, revision int64)) error
	control.PolicyStore
}

// Keys keeps API keys; *membership.Client is one.
type Keys interface {
	control.KeyStore
	// WatchKeys calls notify with all keys until ctx ends.
	WatchKeys(ctx context.Context, notify func([]*controlv1.ApiKey)) error
}

// Publisher sends a router's signals; *signals.Publisher is one.
type Publisher interface {
	routingdriver.Publisher
	// Tenants sends what tenants use at this router.
	Tenants(report *controlv1.TenantReport)
}

// Signals is the source of signals; *signals.Conn is one.
type Signals interface {
	// Subscribe calls handlers until the function it returns is called.
	Subscribe(handlers signals.Handlers) (func(), error)
}

// dialRouter makes connections to other routers; nil: none is asked.
func (d Deps) dialRouter() func(address string) (*grpc.ClientConn, error) {
	if d.DialRouter != nil || d.Auth != nil {
		return d.DialRouter
	}
	return d.Dial
}
