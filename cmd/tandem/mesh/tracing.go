package mesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/services/router"
)

// TraceOptions say which requests are traced and where their spans go.
type TraceOptions struct {
	// Endpoint is a collector's OTLP/gRPC address; empty: none, unless the
	// environment names one.
	Endpoint string
	// File gets spans as lines of JSON; empty: none. FileSize bounds it.
	File     string
	FileSize ByteSize
	// Share of the requests to trace whose callers say nothing, 0 to 1.
	Share float64
	// Tenant lets spans name the tenant.
	Tenant bool
	// Exporter gets the spans too; no flag sets it.
	Exporter sdktrace.SpanExporter
}

func (o *TraceOptions) registerFlags(fs *pflag.FlagSet) {
	o.FileSize = telemetry.DefaultTraceFileBytes
	fs.StringVar(&o.Endpoint, "trace-endpoint", "", "OTLP/gRPC address of a collector for OpenTelemetry spans, host:port (default: what OTEL_EXPORTER_OTLP_ENDPOINT says); none: no collector")
	fs.StringVar(&o.File, "trace-file", "", "file for OpenTelemetry spans, as lines of OTLP's JSON; empty: none")
	fs.Var(&o.FileSize, "trace-file-size", "size at which the trace file is renamed to FILE.1 and begun again")
	fs.Float64Var(&o.Share, "trace-sample", 0.01, "share of the requests to trace, 0 to 1; a caller's traceparent decides for its own")
	fs.BoolVar(&o.Tenant, "trace-tenant", false, "let spans name the tenant of a request")
}

func (o *TraceOptions) config() telemetry.TracingConfig {
	return telemetry.TracingConfig{Endpoint: o.Endpoint, File: o.File, FileBytes: int64(o.FileSize), Exporter: o.Exporter}
}

func (o *TraceOptions) validate() error {
	if !(o.Share >= 0 && o.Share <= 1) { // so that NaN is refused too
		return fmt.Errorf("--trace-sample: %v is not a share: give 0 to 1, like 0.01 for one request of a hundred", o.Share)
	}
	if err := (telemetry.TracingConfig{Endpoint: o.Endpoint}).Validate(); err != nil {
		return fmt.Errorf("--trace-endpoint: %w", err)
	}
	if err := o.config().Validate(); err != nil {
		return fmt.Errorf("--trace-file-size: %w", err)
	}
	return nil
}

// startTracing starts the exporters, if any are configured.
func (p *process) startTracing() error {
	config := p.options.Trace.config().FromEnvironment(os.Getenv)
	if err := config.Validate(); err != nil {
		return err // which names the variable: the flags were checked before
	}
	tracing, err := telemetry.NewTracing(config, p.logger, p.registry)
	if err != nil {
		return fmt.Errorf("--trace-endpoint or --trace-file: %w", err)
	}
	p.tracing = tracing
	return nil
}

// traceFlush bounds how long sending the last spans may take.
const traceFlush = 3 * time.Second

// stopTracing sends the last spans. That some are lost is no failure of the
// process.
func (p *process) stopTracing(ctx context.Context) {
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
	defer cancel()
	if err := p.tracing.Close(flushing); err != nil && !errors.Is(err, context.Canceled) {
		p.logger.Warn("the last spans are lost", "error", err)
	}
}

// routerTracing is what the router traces with.
func (p *process) routerTracing(id string) router.Tracing {
	return router.Tracing{Tracer: p.tracing.Tracer("tandem-router", id), Share: p.options.Trace.Share, Tenant: p.options.Trace.Tenant}
}
