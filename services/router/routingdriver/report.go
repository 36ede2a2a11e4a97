package routingdriver

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Publisher sends a router's signals without blocking; *signals.Publisher is one. It keeps nothing
// of them.
type Publisher interface {
	// Queue sends what waits, for scalers.
	Queue(report *controlv1.QueueReport)
	// Router sends what other routers have to know.
	Router(report *controlv1.RouterReport)
}

// reportEvery is how often the queue is published when it does not change.
const reportEvery = time.Second

// reported is what was said last of one model's queue.
type reported struct {
	at       time.Time
	requests uint32
	tokens   uint64
}

// Report publishes the queue of each model, if it changed or a second has passed, with what add
// adds to it. It is called by one goroutine.
func (d *Dispatcher) Report(now time.Time, add func(*controlv1.QueueReport)) {
	if d.tell == nil {
		return
	}
	queued := d.Queued()
	for _, name := range d.models {
		next := reported{at: now}
		for _, q := range queued[name] {
			next.requests += q.GetRequests()
			next.tokens += q.GetTokens()
		}
		before := d.reported[name]
		if now.Sub(before.at) < reportEvery && before.requests == next.requests && before.tokens == next.tokens {
			continue
		}
		d.reported[name] = next
		report := &controlv1.QueueReport{Model: name, Queues: queued[name]}
		add(report)
		d.tell.Queue(report)
	}
}
