package serving

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/records"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
)

// eventCounter is a recorder that counts events.
type eventCounter int

func (c *eventCounter) Event(_ time.Time, event any) any { *c++; return event }
func (c *eventCounter) Actions(any)                      {}

// DecideAfterAbort gives a request a decision that crossed its abort, and other events after its end. It returns
// what is recorded and what is counted of it, and how many events its log has after the end.
func DecideAfterAbort(t *tokenizer.Tokenizer, decision *controlv1.Decision) (recorded *controlv1.ExplainResponse, sent float64, late int, err error) {
	registry := prometheus.NewRegistry()
	spending, err := latencybudget.NewSpending(latencybudget.DefaultConfig(), nil)
	if err != nil {
		return nil, 0, 0, err
	}
	dispatcher, err := routingdriver.New(routing.Config{}, routingdriver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, 0, 0, err
	}
	s, err := New(Config{}, Deps{Dispatcher: dispatcher, Records: records.New(), Spending: spending, Registerer: registry, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, 0, 0, err
	}
	p := &preprocess.Plan{Model: &preprocess.Model{Tokenizer: t}, Tokens: []int32{1}, MaxTokens: 1, Deadline: time.Now().Add(time.Minute)}
	r := newRequest(s, p, admitted{}, "r", &Caller{}, nil, 1)
	var events eventCounter
	r.loop.Recorder = &events
	r.handle(joining.Start{})
	r.handle(joining.Abort{Err: clienterr.DeadlineExceeded()})
	before := events
	for _, event := range []joining.Event{joining.Dispatched{Dispatch: routing.Dispatch{Decision: decision}}, joining.Abort{}, joining.Tick{}, joining.Start{}} {
		r.handle(event)
	}
	late = int(events - before)
	families, err := registry.Gather()
	for _, f := range families {
		if f.GetName() == "tandem_router_dispatches_total" {
			for _, m := range f.GetMetric() {
				sent += m.GetCounter().GetValue()
			}
		}
	}
	return s.deps.Records.GetExact("", "r"), sent, late, err
}

// NewText is the text of a request, for tests with tokenizers of other models.
func NewText(t *tokenizer.Tokenizer, prompt []int32, stops []string, least int) interface {
	Push(token int32) (out, stop string)
	Flush() (out, stop string)
} {
	return newText(t, prompt, stops, least, nil)
}

// TokenCounter is what counts one token, for tests of what that costs.
func TokenCounter(registerer prometheus.Registerer) (func(now, last time.Time), error) {
	spending, err := latencybudget.NewSpending(latencybudget.DefaultConfig(), nil)
	if err != nil {
		return nil, err
	}
	set := metricset.New(registerer)
	m := newMetrics(set, spending)
	return func(now, last time.Time) { m.token(inferencev1.Mode_MODE_DISAGGREGATED, now, last) }, set.Err()
}

// Traces says whether a request would be traced, for tests of what that costs.
func Traces(ctx context.Context, tracing Tracing) bool {
	return traceRequest(ctx, tracing, time.Time{}, "id", &Caller{}, nil) != nil
}

// ReadDecode decodes messages of a decode stream, one after another, and hands each on, with
// whether it was read by hand.
func ReadDecode(keep bool, messages [][]byte, got func(event *workerv1.DecodeEvent, byHand bool)) error {
	e := &decodeEvent{keep: keep}
	for _, m := range messages {
		if err := e.read(m); err != nil {
			return err
		}
		got(e.message, e.message == e.tokens)
	}
	return nil
}

// Log is an eventLog with one reader, for tests of who gets what.
type Log struct {
	log    *eventLog
	reader *reader
}

// NewLog returns the log of a request that cannot be resumed unless keeps.
func NewLog(keeps bool, now func(*inferencev1.GenerateEvent) bool) (*Log, error) {
	set := metricset.New(nil)
	l := &Log{reader: newReader(now)}
	l.log = newEventLog(newLogMemory(Config{UnreadRequest: 1 << 20, UnreadMemory: 1 << 24}, set), "", keeps, func(error) {})
	return l, set.Err()
}

// Beside returns the log of another request, which counts in the same memory.
func (l *Log) Beside(now func(*inferencev1.GenerateEvent) bool) *Log {
	return &Log{log: newEventLog(l.log.memory, "", false, func(error) {}), reader: newReader(now)}
}

// Of returns the log of a tenant's request, which counts in the same memory.
func (l *Log) Of(tenant string) *Log {
	return &Log{log: newEventLog(l.log.memory, tenant, false, func(error) {}), reader: newReader(nil)}
}

// Append is eventLog.append of a token.
func (l *Log) Append(offset int) (kept bool) {
	e := newTokenEvent()
	e.set(&joining.Deliver{Offset: offset}, nil)
	return l.log.append(&e.event)
}

// AppendEvent is eventLog.append.
func (l *Log) AppendEvent(event *inferencev1.GenerateEvent) (kept bool) { return l.log.append(event) }

// Read is eventLog.read, which is -1 where there is nothing and the reader is asleep.
func (l *Log) Read() (offset int) {
	event, _, _ := l.log.read(l.reader)
	if event == nil {
		return -1
	}
	return int(event.GetOffset())
}

// Roused says whether the reader was.
func (l *Log) Roused() bool {
	select {
	case <-l.reader.wake:
		return true
	default:
		return false
	}
}

// Follow has a reader of a request that nobody can resume see the log's end, before the request was
// told of it. It returns what ends the request, nil if nothing does.
func (l *Log) Follow(end error, send func(*inferencev1.GenerateEvent) error) error {
	var why error
	l.log.end(end)
	func() {
		defer func() { _ = recover() }()
		_ = follow(context.Background(), l.log, func(err error) { why = err }, 0, send, nil)
	}()
	return why
}

// Leave is eventLog.leave.
func (l *Log) Leave() { l.log.leave(l.reader) }

// Bytes is what the log takes.
func (l *Log) Bytes() int64 { return l.log.bytes.Load() }

// Wanted is what an attempt of a request asks of the policy, where a worker holds the prompt's KV.
func Wanted(holder routing.Ref, prompt, generated []int32) routing.Request {
	r := &request{holder: holder, plan: &preprocess.Plan{Tokens: prompt, Model: &preprocess.Model{}}}
	return r.policyRequest("id", 1, slices.Concat(prompt, generated), nil, routing.Version{})
}
