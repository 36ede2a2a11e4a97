package signals

import (
	"strings"
	"sync"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// maxHashes is the most block hashes in one KvEvent: 128 KiB, well under the
// 1 MiB that NATS takes.
const maxHashes = 16 << 10

// maxSubjects bounds the subjects of one publisher, since a router's models
// come from outside. Above it signals are dropped.
const maxSubjects = 1024

// Publisher sends the signals of one worker or router. Its methods fill the
// Origin of what they send, never block and never fail; a signal that cannot
// go out is dropped and counted in tandem_signals_dropped_total. They are safe
// for concurrent use; the signals of one subject go out in the order of their
// numbers.
type Publisher struct {
	conn  *Conn
	id    string
	epoch uint64

	mu        sync.Mutex
	sequences map[string]uint64 // by subject
}

// NewPublisher makes a publisher for the worker or router of this id and
// incarnation epoch. An id needs exactly one publisher, since it counts.
func (c *Conn) NewPublisher(id string, epoch uint64) *Publisher {
	return &Publisher{conn: c, id: id, epoch: epoch, sequences: map[string]uint64{}}
}

// Load sends a worker's load, for the role that the report names, with the number of
// the last KvEvent so far. The report is read before Load returns and not changed.
func (p *Publisher) Load(report *controlv1.LoadReport) {
	out := shallow(report)
	p.send(kindLoad, LoadSubject(report.GetRole(), p.id), trace.SpanContext{}, out, func(origin *controlv1.Origin) {
		out.Origin, out.KvSequence = origin, p.sequences[kvSubject(p.id)]
	})
}

// Kv sends the hashes of blocks that are stored in the worker's prefix cache, or
// removed from it, since the last call. A hash is in at most one of the two. Long
// lists are sent as several events, what is removed first. It returns the number
// of the last event so far, whether or not it could be sent: a snapshot of the
// cache taken with the change in it carries that number. cause is the span of a
// request that made the change; one that is not sampled stays out of the signal.
func (p *Publisher) Kv(cause trace.SpanContext, stored, removed []uint64) (sequence uint64) {
	subject := kvSubject(p.id)
	for len(stored)+len(removed) > 0 {
		event := &controlv1.KvEvent{}
		n := min(len(removed), maxHashes)
		event.Removed, removed = removed[:n], removed[n:]
		n = min(len(stored), maxHashes-n)
		event.Stored, stored = stored[:n], stored[n:]
		p.send(kindKv, subject, cause, event, func(origin *controlv1.Origin) { event.Origin = origin })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sequences[subject]
}

// Queue sends a router's queue, for the model that the report names. The report
// is read before Queue returns and not changed.
func (p *Publisher) Queue(report *controlv1.QueueReport) {
	out := shallow(report)
	p.send(kindQueue, queueSubject(report.GetModel()), trace.SpanContext{}, out, func(origin *controlv1.Origin) { out.Origin = origin })
}

// Router sends what other routers have to know of a router. The report is read before Router returns
// and not changed.
func (p *Publisher) Router(report *controlv1.RouterReport) {
	out := shallow(report)
	p.send(kindRouter, routerSubject(p.id), trace.SpanContext{}, out, func(origin *controlv1.Origin) { out.Origin = origin })
}

// Tenants sends what tenants use at a router. The report is read before Tenants returns and not
// changed.
func (p *Publisher) Tenants(report *controlv1.TenantReport) {
	out := shallow(report)
	p.send(kindTenants, tenantsSubject(p.id), trace.SpanContext{}, out, func(origin *controlv1.Origin) { out.Origin = origin })
}

// shallow copies a report's fields, but not the messages in them: a router has thousands of those, and
// reports often.
func shallow[M proto.Message](report M) M {
	from := report.ProtoReflect()
	out := from.New()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		out.Set(field, value)
		return true
	})
	same, _ := out.Interface().(M) // as New makes it
	return same
}

// send numbers a signal, has setOrigin write that into it, and enqueues it. The lock
// spans all, so that numbers go out in order.
func (p *Publisher) send(kind, subject string, cause trace.SpanContext, message proto.Message, setOrigin func(*controlv1.Origin)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sequence, known := p.sequences[subject]
	if !known && len(p.sequences) >= maxSubjects {
		p.conn.metrics.dropped.WithLabelValues(kind, "subjects").Inc()
		return
	}
	sequence++
	p.sequences[subject] = sequence
	setOrigin(&controlv1.Origin{Id: p.id, Epoch: p.epoch, Sequence: sequence})
	payload, err := proto.Marshal(message)
	if err != nil { // text that is not UTF-8
		p.conn.metrics.dropped.WithLabelValues(kind, "malformed").Inc()
		return
	}
	p.conn.enqueue(outgoing{kind: kind, subject: subject, payload: payload, traceParent: rpc.TraceParent(cause)})
}

// LoadSubject is the subject of a worker's load reports.
func LoadSubject(role controlv1.Role, workerID string) string {
	return "tandem.v1.load." + encodeToken(api.Name(role)) + "." + encodeToken(workerID)
}

// kvSubject is the subject of a worker's KV events.
func kvSubject(workerID string) string {
	return "tandem.v1.kv." + encodeToken(workerID)
}

// queueSubject is the subject of routers' queue depths for a model.
func queueSubject(model string) string {
	return "tandem.v1.queue." + encodeToken(model)
}

// routerSubject is the subject of what a router says to the others.
func routerSubject(routerID string) string {
	return "tandem.v1.router." + encodeToken(routerID)
}

// tenantsSubject is the subject of what tenants use at a router.
func tenantsSubject(routerID string) string {
	return "tandem.v1.tenants." + encodeToken(routerID)
}

// encodeToken writes a name as one token of a NATS subject, as the package
// comment says. Different names give different tokens.
func encodeToken(name string) string {
	const digits = "0123456789ABCDEF"
	if name == "" {
		return "%"
	}
	var token strings.Builder
	for i := range len(name) {
		switch b := name[i]; {
		case b >= 'A' && b <= 'Z', b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '-', b == '_':
			token.WriteByte(b)
		default:
			token.Write([]byte{'%', digits[b>>4], digits[b&15]})
		}
	}
	return token.String()
}
