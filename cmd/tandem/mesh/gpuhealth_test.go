package mesh_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// An Xid that concerns another process is logged and counted, and the mesh serves; one by
// which the GPU is lost ends the process, though no call of the driver failed.
func TestReportedErrors(t *testing.T) {
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.Engine.CUDA.NVML, o.StopTimeout, o.Metrics = gpu.NVML, 5*time.Second, "127.0.0.1:0"
	gpu.MemoryErrors(5, 0)
	var log logged
	up, ended := startMesh(t.Context(), t, o, slog.New(slog.NewTextHandler(&log, nil)), telemetry.NewRegistry())
	gpu.Report(31)
	for {
		_, page := get(t, up.Metrics, "/metrics")
		if strings.Contains(page, `tandem_gpu_xid_total{xid="31"} 1`) {
			if !strings.Contains(page, `tandem_gpu_ecc_errors{kind="corrected"} 5`) || !strings.Contains(page, `tandem_gpu_ecc_errors{kind="uncorrected"} 0`) {
				t.Errorf("errors of memory are not in the metrics:\n%s", page)
			}
			break
		}
	}
	if err := answered(t, up.Address, "Once upon a time"); !errors.Is(err, io.EOF) {
		t.Errorf("a request after an Xid of another process: %v", err)
	}
	gpu.Report(79)
	if err := <-ended; !errors.Is(err, engine.ErrDeviceLost) {
		t.Errorf("it ended with %v", err)
	}
	for _, line := range []string{`msg="the GPU reported an error" device=cuda:0 kind=xid`, "xid=31", `level=ERROR msg="the GPU is lost: its workers are leaving"`, "xid=79"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("no %q in the log:\n%s", line, log.String())
		}
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}

// Without NVML a line says so and all else is as ever; a file that was named has to be one.
func TestNoNVML(t *testing.T) {
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.Engine.CUDA.NVML = "/nowhere/libnvidia-ml.so.1"
	if err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil); err == nil || !strings.HasPrefix(err.Error(), "--nvml: no NVML: /nowhere") {
		t.Errorf("error %v", err)
	}
	o.Engine.CUDA.NVML = ""
	var log logged
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	// The system's, if there is one, does not know the emulated device.
	err := mesh.Run(ctx, o, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), ignore, func(mesh.Up) { stop() })
	if said := log.String(); err != nil || strings.Count(said, "the GPU's health is not watched") != 1 {
		t.Errorf("error %v, log:\n%s", err, said)
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}
