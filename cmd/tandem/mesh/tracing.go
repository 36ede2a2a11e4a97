package mesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// newTracing starts the exporters, if any are configured.
func (p *process) newTracing(context.Context) ([]lifecycle.Service, error) {
	config := p.options.Trace.FromEnvironment(os.Getenv)
	if err := config.Validate(); err != nil {
		return nil, err // which names the variable: the flags were checked before
	}
	tracing, err := telemetry.NewTracing(config, p.logger, p.registry)
	if err != nil {
		return nil, fmt.Errorf("--trace-endpoint or --trace-file: %w", err)
	}
	p.tracing = tracing
	return []lifecycle.Service{{Name: "tracing", Close: p.stopTracing}}, nil
}

const traceFlush = 3 * time.Second

// stopTracing sends the last spans. That some are lost is no failure of the
// process.
func (p *process) stopTracing() error {
	flushing, cancel := context.WithTimeout(context.Background(), traceFlush)
	defer cancel()
	if err := p.tracing.Close(flushing); err != nil && !errors.Is(err, context.Canceled) {
		p.logger.Warn("the last spans are lost", "error", err)
	}
	return nil
}
