package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// stores waits until the router that serves operators at control is connected to just
// these block stores.
func stores(t *testing.T, control string, want ...string) {
	t.Helper()
	conn, err := rpc.Dial(control, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := t.Context()
	views, err := controlv1.NewControlClient(conn).WatchWorkers(ctx, &controlv1.ListWorkersRequest{Role: controlv1.Role_ROLE_KVTRANSFER})
	if err != nil {
		t.Fatal(err)
	}
	for {
		view, err := views.Recv()
		if err != nil {
			t.Fatalf("the router never has the block stores %v: %v", want, err)
		}
		var ids []string
		for _, w := range view.GetWorkers() {
			if w.GetConnected() {
				ids = append(ids, w.GetRecord().GetId())
			}
		}
		if slices.Equal(ids, want) {
			return
		}
	}
}

// A block store in a process of its own loads no model. It leaves when it is asked
// to, or told to stop.
func TestServeBlockStore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.KVStores = 1
	o.Store.Memory = 64 << 20
	if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer cancel()
		stores(t, up.Control, "kvtransfer-1")
		inner, stop := context.WithCancel(t.Context())
		defer stop()
		part := mesh.ServeOptions{Options: o.Options, Target: "kvtransfer", ID: "store-9"}
		part.Model, part.Membership.Endpoints, part.Signals.URLs, part.HTTP, part.Metrics = "/nowhere", up.Etcd, up.NATS, "", ""
		if err := mesh.Serve(inner, part, quiet, prometheus.NewRegistry(), neverLoads(t), func(p mesh.Part) {
			defer stop()
			if p.OutsideBytes != 64<<20 {
				t.Errorf("%d bytes outside Go's heap", p.OutsideBytes)
			}
			stores(t, up.Control, "kvtransfer-1", "store-9")
			drainWorker(t, up.Control, "kvtransfer-1")
			stores(t, up.Control, "store-9")
		}); err != nil {
			t.Error(err)
		}
		stores(t, up.Control)
	}); err != nil {
		t.Fatal(err)
	}
}

// drainWorker asks a worker to leave and waits until it has nothing left.
func drainWorker(t *testing.T, control, id string) {
	t.Helper()
	conn, err := rpc.Dial(control, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	progress, err := controlv1.NewControlClient(conn).Drain(t.Context(), &controlv1.DrainRequest{WorkerId: id, Force: true})
	for err == nil {
		_, err = progress.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("drain %s: %v", id, err)
	}
}

// Memory for less than one block is refused: nothing would ever be held.
func TestBlockStoreOfLessThanABlock(t *testing.T) {
	o := upOptions(t)
	o.KVStores = 1
	o.Store.Memory = 1 << 10
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { t.Error("it runs") })
	if err == nil || !strings.HasPrefix(err.Error(), "--store-memory: 1KiB does not hold one block of 32 tokens") {
		t.Fatalf("error %v", err)
	}
	// What the message names is enough.
	var least int
	if _, scanErr := fmt.Sscanf(err.Error()[strings.LastIndex(err.Error(), "model: pass ")+len("model: pass "):], "%d", &least); scanErr != nil {
		t.Fatal(scanErr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Store.Memory = bytesize.Size(least)
	if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { cancel() }); err != nil {
		t.Error(err)
	}
}
