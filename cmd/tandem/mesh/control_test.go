package mesh_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// runMesh runs a mesh while test runs.
func runMesh(t *testing.T, o mesh.UpOptions, test func(up mesh.Up)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := false
	if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer cancel()
		began = true
		test(up)
	}); err != nil || !began {
		t.Fatalf("it ended with %v, was ready: %v", err, began)
	}
}

// startMesh runs a mesh until ctx ends, which sends what Run returned to ended.
func startMesh(ctx context.Context, t *testing.T, o mesh.UpOptions, logger *slog.Logger, registry *prometheus.Registry) (up mesh.Up, ended <-chan error) {
	t.Helper()
	ready, failed := make(chan mesh.Up, 1), make(chan error, 1)
	go func() {
		failed <- mesh.Run(ctx, o, logger, registry, ignore, func(up mesh.Up) { ready <- up })
	}()
	select {
	case up = <-ready:
	case err := <-failed:
		t.Fatalf("it did not start: %v", err)
	}
	return up, failed
}

// callsOfControl are all methods of Control, each called once, by name.
func callsOfControl(ctx context.Context, conn *grpc.ClientConn) map[string]error {
	client := controlv1.NewControlClient(conn)
	errs := map[string]error{}
	_, errs["ListWorkers"] = client.ListWorkers(ctx, &controlv1.ListWorkersRequest{})
	_, errs["Undrain"] = client.Undrain(ctx, &controlv1.UndrainRequest{WorkerId: "none"})
	_, errs["Explain"] = client.Explain(ctx, &controlv1.ExplainRequest{RequestId: "none"})
	_, errs["GetBudget"] = client.GetBudget(ctx, &controlv1.GetBudgetRequest{})
	_, errs["GetPolicy"] = client.GetPolicy(ctx, &controlv1.GetPolicyRequest{})
	_, errs["SetPolicy"] = client.SetPolicy(ctx, &controlv1.SetPolicyRequest{})
	watch, err := client.WatchWorkers(ctx, &controlv1.ListWorkersRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	errs["WatchWorkers"] = err
	drain, err := client.Drain(ctx, &controlv1.DrainRequest{WorkerId: "none"})
	if err == nil {
		_, err = drain.Recv()
	}
	errs["Drain"] = err
	return errs
}

// Where clients connect nobody can drain a worker, nor read of others' requests.
func TestControlIsNotWhereClientsAre(t *testing.T) {
	runMesh(t, upOptions(t), func(up mesh.Up) {
		ctx := t.Context()
		for where, address := range map[string]string{"clients": up.Address, "operators": up.Control} {
			conn, err := rpc.Dial(address, rpc.ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			errs := callsOfControl(ctx, conn)
			if want := len(controlv1.Control_ServiceDesc.Methods) + len(controlv1.Control_ServiceDesc.Streams); len(errs) != want {
				t.Errorf("%d methods of Control are called, there are %d", len(errs), want)
			}
			for method, err := range errs {
				if unknown := grpcstatus.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "unknown service"); unknown != (where == "clients") {
					t.Errorf("where %s connect, %s answers %v", where, method, err)
				}
			}
			answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Errorf("where %s connect, health says %v, %v", where, answer, err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Nobody but this machine reaches operators' calls unless that is asked for.
func TestControlListensOnLoopbackByDefault(t *testing.T) {
	var up mesh.UpOptions
	up.RegisterFlags(pflag.NewFlagSet("up", pflag.ContinueOnError))
	var serve mesh.ServeOptions
	serve.RegisterFlags(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	for command, address := range map[string]string{"up": up.Control, "serve": serve.Control} {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err != nil || !ip.IsLoopback() {
			t.Errorf("%s: --control is %q by default", command, address)
		}
	}
}

// A mesh without Control knows its own readiness all the same.
func TestMeshWithoutControl(t *testing.T) {
	o := upOptions(t)
	o.Control = ""
	runMesh(t, o, func(up mesh.Up) {
		if up.Control != "" {
			t.Errorf("control is at %q", up.Control)
		}
		if status, text := get(t, up.HTTP, "/readyz"); status != http.StatusOK {
			t.Errorf("ready: %d %s", status, text)
		}
	})
}

func TestControlOnASocket(t *testing.T) {
	o := upOptions(t)
	o.Control = "unix://" + t.TempDir() + "/control.sock"
	runMesh(t, o, func(up mesh.Up) {
		if up.Control != o.Control {
			t.Errorf("control is at %q, want %q", up.Control, o.Control)
		}
		stores(t, up.Control)
	})
}

// A watch and a drain that waits do not hold up the end of a router.
func TestRouterEndsUnderOperatorsCalls(t *testing.T) {
	o := upOptions(t)
	o.StopTimeout = 5 * time.Minute // an end that waits for it fails by the test's own timeout
	var ended error
	var watch grpc.ServerStreamingClient[controlv1.ListWorkersResponse]
	var conn *grpc.ClientConn
	runMesh(t, o, func(up mesh.Up) {
		var err error
		if conn, err = rpc.Dial(up.Control, rpc.ClientConfig{}); err != nil {
			t.Fatal(err)
		}
		if watch, err = controlv1.NewControlClient(conn).WatchWorkers(t.Context(), &controlv1.ListWorkersRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	})
	for ended == nil {
		_, ended = watch.Recv()
	}
	if errors.Is(ended, io.EOF) || !strings.Contains(ended.Error(), "shutting down") {
		t.Errorf("the watch ended with %v", ended)
	}
	_ = conn.Close()
}
