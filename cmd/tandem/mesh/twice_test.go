package mesh_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// TestTwoUpsOnOneEtcd: a second 'up' would take the ids of the first. What one left that crashed does
// not keep the next from starting.
func TestTwoUpsOnOneEtcd(t *testing.T) {
	longtest.Only(t) // leases have to run out
	t.Parallel()
	etcd, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	o := upOptions(t)
	o.Membership.Endpoints, o.Membership.LeaseTTL = []string{etcd.Endpoint()}, time.Second
	crashed, err := membership.Connect(t.Context(), o.Membership, quiet)
	if err != nil {
		t.Fatal(err)
	}
	left := membership.Identity{ID: "router-1", Epoch: membership.NewEpoch(), Role: controlv1.Role_ROLE_ROUTER, Addresses: []string{"127.0.0.1:1"}}
	if err := crashed.Register(left.Record()).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := crashed.Close(); err != nil { // leaves the record
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	_, ended := startMesh(ctx, t, o, quiet, prometheus.NewRegistry())
	o.DataDir = t.TempDir()
	err = mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { t.Error("both are ready") })
	if err == nil || !strings.HasPrefix(err.Error(), "--etcd: another 'tandem up' uses the etcd at "+etcd.Endpoint()) {
		t.Errorf("the second one: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
