// Package telemetry builds what a process reports about itself: its logger, its
// metrics registry, its version and its traces.
//
// Mains and tests import it; services receive a *slog.Logger, a
// prometheus.Registerer and a trace.Tracer instead. A Tracing owns its file, its
// connection to a collector and a goroutine for each of the two; Close ends them.
// Nothing else owns anything or starts goroutines.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewLogger writes to w. The format is "text" or "json", the level "debug",
// "info", "warn" or "error"; empty strings are "text" and "info". The logger is
// safe for concurrent use; w need not be.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var options slog.HandlerOptions
	if level != "" {
		var parsed slog.Level
		if err := parsed.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("--log-level: %q is unknown: use debug, info, warn or error", level)
		}
		options.Level = parsed
	}
	switch strings.ToLower(format) {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is unknown: use text or json", format)
}

// NewRegistry makes a registry that already holds the metrics of the Go runtime
// (the collector's pauses and the scheduler's latencies included), those of the
// process, and tandem_build_info.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	buildInfo := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tandem_build_info",
		Help: "Always 1; the labels identify the build.",
	}, []string{"version", "revision", "go"})
	build := ReadBuild()
	buildInfo.WithLabelValues(build.Version, build.Revision, build.Go).Set(1)
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
			collectors.MetricsGC, collectors.MetricsMemory, collectors.MetricsScheduler)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo,
	)
	return registry
}

// Handler serves what gatherer gathers, such as a registry, in the formats that
// Prometheus reads. At most four scrapes run at a time, each for at most ten
// seconds. What cannot be gathered is left out, and counted at registerer.
func Handler(registerer prometheus.Registerer, gatherer prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		Registry:            registerer,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
		EnableOpenMetrics:   true,
	})
}
