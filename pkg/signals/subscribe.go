package signals

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"
)

// receiveQueue and receiveBytes are how many signals of one kind wait for the handlers, and how large
// they may be together: whoever reaches the server may send large ones. Beyond that the NATS client drops
// them, and their readers see a gap.
const (
	receiveQueue = 4096
	receiveBytes = 32 << 20
)

// Handlers get signals. A nil one does not subscribe. One is called at a
// time, and owns what it gets; its Origin is always there.
type Handlers struct {
	// Load gets the load reports of all workers.
	Load func(*controlv1.LoadReport)
	// Kv gets the changes of all prefix caches.
	Kv func(*controlv1.KvEvent)
	// Queue gets the queue depths of all routers, the own ones included.
	Queue func(*controlv1.QueueReport)
	// Router gets what all routers say to each other, the own reports included.
	Router func(*controlv1.RouterReport)
	// Tenants gets what tenants use at all routers, the own ones included.
	Tenants func(*controlv1.TenantReport)
}

// Subscribe calls the handlers with every signal that comes from now on, also
// after NATS was away. The function that it returns ends that; once it has
// returned no handler runs. It must not be called from a handler. The error
// says that the connection is closed.
func (c *Conn) Subscribe(handlers Handlers) (func(), error) {
	s := &subscriber{conn: c}
	subscribe(s, "tandem.v1.load.*.*", kindLoad, handlers.Load)
	subscribe(s, "tandem.v1.kv.*", kindKv, handlers.Kv)
	subscribe(s, "tandem.v1.queue.*", kindQueue, handlers.Queue)
	subscribe(s, "tandem.v1.router.*", kindRouter, handlers.Router)
	subscribe(s, "tandem.v1.tenants.*", kindTenants, handlers.Tenants)
	if s.failure != nil {
		s.end()
		return nil, s.failure
	}
	return sync.OnceFunc(s.end), nil
}

// subscriber has the subscriptions of one call of Subscribe.
type subscriber struct {
	conn          *Conn
	subscriptions []*nats.Subscription
	failure       error // of the first that could not be made

	mu    sync.Mutex // held while a handler runs
	ended bool
}

// subscribe calls handle with each signal of a kind.
func subscribe[T any, M interface {
	*T
	signal
}](s *subscriber, subject, kind string, handle func(M)) {
	if handle == nil || s.failure != nil {
		return
	}
	subscription, err := s.conn.nats.Subscribe(subject, func(m *nats.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			receive(s.conn, kind, m, M(new(T)), handle)
		}
	})
	if err != nil {
		s.failure = fmt.Errorf("subscribe to %s: %w", subject, err)
		return
	}
	s.subscriptions = append(s.subscriptions, subscription)
	// It fails only when the connection is closed, which ends the subscription.
	_ = subscription.SetPendingLimits(receiveQueue, receiveBytes)
}

// end ends all subscriptions. Once it has returned no handler runs.
func (s *subscriber) end() {
	for _, subscription := range s.subscriptions {
		_ = subscription.Unsubscribe() // likewise
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

var errNoOrigin = errors.New("no origin")

// signal is a message with an origin.
type signal interface {
	proto.Message
	GetOrigin() *controlv1.Origin
}

// receive decodes a message and hands it on. What does not decode is counted:
// the channel is open to whoever reaches the server.
func receive[M signal](c *Conn, kind string, message *nats.Msg, into M, handle func(M)) {
	err := proto.Unmarshal(message.Data, into)
	if err == nil && into.GetOrigin() == nil {
		err = errNoOrigin
	}
	if err != nil {
		c.metrics.malformed.WithLabelValues(kind).Inc()
		return
	}
	c.metrics.received.WithLabelValues(kind).Inc()
	if span := c.startSpan(kind, message); span != nil {
		defer span.End()
	}
	handle(into)
}
