package signals

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"
)

// receiveQueue is how many signals of one kind wait for the handlers. Beyond it
// the NATS client drops them, and their readers see a gap.
const receiveQueue = 4096

// Handlers get signals. A nil one does not subscribe. They are called from one
// goroutine and own what they get; its Origin is always there.
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
	var subscriptions []*nats.Subscription
	unsubscribe := func() {
		for _, s := range subscriptions {
			// It fails only when the connection is closed, which ends it too.
			_ = s.Unsubscribe()
		}
	}
	var failure error
	subscribe := func(subject string, wanted bool) chan *nats.Msg {
		if !wanted || failure != nil {
			return nil
		}
		messages := make(chan *nats.Msg, receiveQueue)
		subscription, err := c.nats.ChanSubscribe(subject, messages)
		if err != nil {
			failure = fmt.Errorf("subscribe to %s: %w", subject, err)
			return nil
		}
		subscriptions = append(subscriptions, subscription)
		return messages
	}
	load := subscribe("tandem.v1.load.*.*", handlers.Load != nil)
	kv := subscribe("tandem.v1.kv.*", handlers.Kv != nil)
	queue := subscribe("tandem.v1.queue.*", handlers.Queue != nil)
	router := subscribe("tandem.v1.router.*", handlers.Router != nil)
	tenants := subscribe("tandem.v1.tenants.*", handlers.Tenants != nil)
	if failure != nil {
		unsubscribe()
		return nil, failure
	}

	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			// done is looked at by itself first: select picks at random.
			select {
			case <-done:
				return
			default:
			}
			select {
			case <-done:
				return
			case m := <-load:
				receive(c, kindLoad, m, &controlv1.LoadReport{}, handlers.Load)
			case m := <-kv:
				receive(c, kindKv, m, &controlv1.KvEvent{}, handlers.Kv)
			case m := <-queue:
				receive(c, kindQueue, m, &controlv1.QueueReport{}, handlers.Queue)
			case m := <-router:
				receive(c, kindRouter, m, &controlv1.RouterReport{}, handlers.Router)
			case m := <-tenants:
				receive(c, kindTenants, m, &controlv1.TenantReport{}, handlers.Tenants)
			}
		}
	})
	return sync.OnceFunc(func() {
		unsubscribe()
		close(done)
		reader.Wait()
	}), nil
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
