package clustertest

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// InProcess is a mesh in the test's own process.
type InProcess struct {
	*Client
	Up mesh.Up
	// Metrics are those of all its parts.
	Metrics prometheus.Gatherer
	// Stop stops the mesh and waits; it is called at the end of the test at the
	// latest. Calling it again gives the same error.
	Stop func() error
}

// Start runs a mesh for the rest of the test: ports chosen by the system, no HTTP,
// everything else as `tandem up` has it, changed by change.
func Start(t testing.TB, change func(*mesh.UpOptions)) *InProcess {
	t.Helper()
	var options mesh.UpOptions
	options.RegisterFlags(pflag.NewFlagSet("up", pflag.ContinueOnError))
	options.Listen, options.Control, options.HTTP, options.Metrics = "127.0.0.1:0", "127.0.0.1:0", "", ""
	options.DataDir = t.TempDir()
	options.StopTimeout = Timeout
	options.Engine.KVMemory = 64 << 20
	if change != nil {
		change(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ready, ended := make(chan mesh.Up, 1), make(chan error, 1)
	registry := prometheus.NewRegistry()
	go func() {
		ended <- mesh.Run(ctx, options, logger, registry, func(string, int64, int64) {}, func(up mesh.Up) { ready <- up })
	}()
	m := &InProcess{Metrics: registry}
	stopped := false
	var stopErr error
	m.Stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			stopErr = <-ended
		}
		return stopErr
	}
	select {
	case m.Up = <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("the mesh did not start: %v", err)
	case <-time.After(Timeout):
		cancel()
		t.Fatalf("the mesh was not ready within %v; it ended with %v", Timeout, <-ended)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Errorf("the mesh stopped with %v", err)
		}
	})
	m.Client = Dial(t, m.Up.Address, m.Up.Control)
	return m
}

// Router is a client of the router.
func (m *InProcess) Router() *Client { return m.Client }

// Cannot says why an ability lacks.
func (m *InProcess) Cannot(ability string) string {
	switch ability {
	case "ServerStopper":
		return "a mesh in one process ends with the servers embedded in it: TestEtcdAndNATSMayGoAway gives it servers of its own"
	case "Cutter":
		return "a mesh in one process has the loopback interface to itself"
	default:
		return "workers of one process start and end with it"
	}
}
