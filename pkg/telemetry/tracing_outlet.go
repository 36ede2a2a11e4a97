package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// complainEvery is the least time between two log lines about one exporter.
const complainEvery = time.Minute

// outlet is one exporter. It counts, and tells the log what goes wrong: the SDK
// would tell a global handler. Only the queue's goroutine calls ExportSpans.
type outlet struct {
	kind, where string
	next        sdktrace.SpanExporter
	counts      *prometheus.CounterVec
	log         *slog.Logger
	ended       chan struct{} // closed when the queue is done with it

	failing    bool
	complained time.Time
}

var _ sdktrace.SpanExporter = (*outlet)(nil)

func newOutlet(kind, where string, next sdktrace.SpanExporter, counts *prometheus.CounterVec, log *slog.Logger) *outlet {
	return &outlet{kind: kind, where: where, next: next, counts: counts, log: log, ended: make(chan struct{})}
}

// newSpanCounts registers the metrics: spans that were made, and what became of
// them at the outlets. What is missing there waits, or found its queue full.
func newSpanCounts(registerer prometheus.Registerer) (made, counts *prometheus.CounterVec, err error) {
	made = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_trace_spans_made_total", Help: "Spans of sampled requests that ended, by the part that made them.",
	}, []string{"service"})
	counts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_trace_spans_total", Help: "Spans of sampled requests given to an exporter, by whether it took them.",
	}, []string{"exporter", "result"})
	if registerer == nil {
		return made, counts, nil
	}
	return made, counts, errors.Join(registerer.Register(made), registerer.Register(counts))
}

// counter counts the spans that end.
type counter struct{ made prometheus.Counter }

func (c counter) OnEnd(sdktrace.ReadOnlySpan) { c.made.Inc() }

func (counter) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (counter) Shutdown(context.Context) error                  { return nil }
func (counter) ForceFlush(context.Context) error                { return nil }

// ExportSpans passes spans on. Those that fail are lost, and counted.
func (o *outlet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := o.next.ExportSpans(ctx, spans)
	if err == nil {
		o.counts.WithLabelValues(o.kind, "sent").Add(float64(len(spans)))
		if o.failing {
			o.failing = false
			o.log.Info("spans are exported again", slog.String("exporter", o.kind), slog.String("to", o.where))
		}
		return nil
	}
	o.counts.WithLabelValues(o.kind, "lost").Add(float64(len(spans)))
	if now := time.Now(); !o.failing || now.Sub(o.complained) >= complainEvery {
		o.failing, o.complained = true, now
		o.log.Warn("spans cannot be exported and are lost: requests are not affected", slog.String("exporter", o.kind),
			slog.String("to", o.where), slog.Int("spans", len(spans)), slog.Any("error", err))
	}
	return nil
}

// Shutdown is the queue's last call.
func (o *outlet) Shutdown(ctx context.Context) error {
	defer close(o.ended)
	return o.next.Shutdown(ctx)
}

// closeAfter empties the queue until ctx ends and closes the exporter.
func (o *outlet) closeAfter(ctx context.Context, queue sdktrace.SpanProcessor) error {
	err := queue.Shutdown(ctx)
	if err == nil {
		return nil
	}
	// Cuts an export short; those after it fail at once.
	_ = o.next.Shutdown(ctx)
	timer := time.NewTimer(cutTimeout)
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-timer.C:
	}
	return fmt.Errorf("send the last spans to %s: %w", o.where, err)
}
