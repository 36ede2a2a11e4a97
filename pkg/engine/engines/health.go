package engines

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
)

// knownXids is more than any Xid of NVIDIA's catalogue, so that there are only so many
// values of a label.
const knownXids = 1000

// Watch watches the GPU that the engines compute on, if they do: what the driver reports is
// logged and counted in metrics, and the workers leave where that is fatal. Then lost is
// called with why, also if no call of the driver ever returns. Without NVML only what calls
// say is known of the GPU, which is an error if a file of it was named.
func (s *Set) Watch(registry prometheus.Registerer, logger *slog.Logger, lost func(why error)) error {
	if s.gpuWeights == nil {
		return nil
	}
	xids := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_gpu_xid_total", Help: "Errors that the GPU's driver reported, by Xid, whichever process caused them.",
	}, []string{"xid"})
	device, library := s.config.Device, s.config.CUDA.NVML
	health, err := s.gpuWeights.Watch(cuda.HealthConfig{
		Library: library,
		Event: func(event cuda.HealthEvent) {
			if event.Kind == cuda.HealthXid {
				xids.WithLabelValues(xidLabel(event.Xid)).Inc()
			}
			logHealth(logger, device, event)
			if event.Fatal {
				lost(fmt.Errorf("%w: a driver call does not return: %s", engine.ErrDeviceLost, event.Means))
			}
		},
	})
	switch {
	case err != nil && library != "":
		return fmt.Errorf("--nvml: %w", err)
	case err != nil:
		logger.Info("the GPU's health is not watched", slog.String("device", device), slog.String("why", err.Error()))
		return nil
	}
	s.health = health
	collectors := []prometheus.Collector{xids}
	if _, _, known := health.ECC(); known {
		collectors = append(collectors,
			eccGauge("corrected", func() uint64 { n, _, _ := health.ECC(); return n }),
			eccGauge("uncorrected", func() uint64 { _, n, _ := health.ECC(); return n }))
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("metrics of the GPU: %w", err)
		}
	}
	return nil
}

func xidLabel(xid uint64) string {
	if xid >= knownXids {
		return "other"
	}
	return strconv.FormatUint(xid, 10)
}

func eccGauge(kind string, count func() uint64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tandem_gpu_ecc_errors", Help: "Memory errors of the GPU since its driver was loaded, by whether ECC could correct them.",
		ConstLabels: prometheus.Labels{"kind": kind},
	}, func() float64 { return float64(count()) })
}

// logHealth writes an event to the log: what the workers leave by is an error, what ECC put
// right is nothing that anybody has to do something about.
func logHealth(logger *slog.Logger, device string, event cuda.HealthEvent) {
	attributes := []any{slog.String("device", device), slog.String("kind", string(event.Kind)), slog.String("means", event.Means)}
	if event.Kind == cuda.HealthXid {
		attributes = append(attributes, slog.Uint64("xid", event.Xid))
	}
	switch {
	case event.Fatal:
		logger.Error("the GPU is lost: its workers are leaving", attributes...)
	case event.Kind == cuda.HealthCorrected:
		logger.Debug("the GPU reported an error", attributes...)
	case event.Kind == cuda.HealthUnwatched:
		logger.Warn("the GPU's health is no longer watched", attributes...)
	default:
		logger.Warn("the GPU reported an error", attributes...)
	}
}
