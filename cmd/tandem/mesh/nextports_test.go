package mesh_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// TestNextFreePorts: a second mesh on a machine takes other ports, but not instead of one
// that was asked for.
func TestNextFreePorts(t *testing.T) {
	var taken []string
	for range 4 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		taken = append(taken, listener.Addr().String())
	}
	o := upOptions(t)
	o.Listen, o.Control, o.HTTP, o.Metrics = taken[0], taken[1], taken[2], taken[3]

	o.Given = func(flag string) bool { return flag == "metrics" }
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "--metrics: ") {
		t.Errorf("with --metrics asked for: %v", err)
	}

	o.Given = func(string) bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var up mesh.Up
	if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(u mesh.Up) { up = u; cancel() }); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ flag, at string }{{"listen", up.Address}, {"control", up.Control}, {"http", up.HTTP}, {"metrics", up.Metrics}} {
		if up.Taken[c.flag] != taken[i] || c.at == taken[i] || !strings.HasPrefix(c.at, "127.0.0.1:") {
			t.Errorf("--%s: it listens on %q, and %q is taken; want another than %s", c.flag, c.at, up.Taken[c.flag], taken[i])
		}
	}
}

// TestItSaysThatItWaitsForEtcd long before it gives up.
func TestItSaysThatItWaitsForEtcd(t *testing.T) {
	for _, target := range []string{"decode", "router"} {
		part := mesh.ServeOptions{Options: upOptions(t).Options, Target: target, Listen: "127.0.0.1:0"}
		part.StartTimeout = time.Second
		part.Membership.Endpoints, part.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
		var log bytes.Buffer
		err := mesh.Serve(t.Context(), part, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), neverLoads(t), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot reach etcd at http://127.0.0.1:1") || !strings.Contains(err.Error(), "'make servers' builds it") {
			t.Errorf("%s: %v", target, err)
		}
		line, _, _ := strings.Cut(log.String()[max(0, strings.Index(log.String(), `msg="waiting for etcd"`)):], "\n")
		if !strings.Contains(line, "http://127.0.0.1:1") || !strings.Contains(line, "at_most=1s") {
			t.Errorf("%s logs only %s", target, log.String())
		}
	}
}
