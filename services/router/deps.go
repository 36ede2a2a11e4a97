package router

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// Deps is what a router works with.
type Deps struct {
	// ID is the router's worker id, for its log lines.
	ID string
	// Models that can be asked for, names unique.
	Models []Model
	// Members says which workers there are, and keeps the policy.
	Members Members
	// Signals brings load reports and KV events. Nil: none come, and routing goes
	// by the router's own account.
	Signals Signals
	// Queue gets what waits. Nil: nobody is told.
	Queue QueuePublisher
	// Dial makes a connection to a worker that the router closes. Its calls fail
	// at once while there is no connection.
	Dial func(address string) (*grpc.ClientConn, error)
	// Rand is the source of choices among equals, called by one goroutine at a
	// time. Nil: a source seeded at random.
	Rand fleet.Rand
	// Logger; nil: none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
	// Tracing makes the spans of sampled requests.
	Tracing Tracing
}

// Model is one model that can be asked for.
type Model struct {
	// Spec describes it. An empty Digest, of a router that has not read the
	// weights, takes workers by the model's name.
	Spec      model.Spec
	Tokenizer *tokenizer.Tokenizer
	// Chat makes prompts of conversations; nil: conversations are refused, and
	// ChatError says why.
	Chat      chat.Template
	ChatError error
	// Aliases are further names that mean this model, or patterns of path.Match.
	// A model's own name counts more, and then the first model with an alias.
	Aliases []string
}

// Members is membership as the router needs it; *membership.Client is one.
type Members interface {
	// Watch calls notify with each view until ctx ends.
	Watch(ctx context.Context, notify func(membership.View)) error
	// WatchPolicy calls notify with each policy until ctx ends.
	WatchPolicy(ctx context.Context, notify func(*controlv1.Policy)) error
	// SetPolicy replaces the policy in every router.
	SetPolicy(ctx context.Context, policy *controlv1.Policy) error
}

// Signals is the source of signals; *signals.Conn is one.
type Signals interface {
	// Subscribe calls handlers until the function it returns is called.
	Subscribe(handlers signals.Handlers) (func(), error)
}

// QueuePublisher sends queue reports without blocking; *signals.Publisher is
// one.
type QueuePublisher interface {
	Queue(report *controlv1.QueueReport)
}
