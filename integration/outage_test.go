package integration_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/longtest"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

const (
	// outage is how long etcd and NATS are gone: three times the leases.
	outage = 3 * lease
	// around is how long traffic runs before and after.
	around = 3 * time.Second
)

// Advisory signals: etcd and NATS may go away for longer than every lease and
// come back, and no request fails meanwhile.
func TestEtcdAndNATSMayGoAway(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	etcdConfig := embedded.EtcdConfig{DataDir: t.TempDir(), Port: clustertest.FreePort(t)}
	etcd, err := embedded.StartEtcd(t.Context(), etcdConfig)
	if err != nil {
		t.Fatal(err)
	}
	natsConfig := embedded.NATSConfig{Port: clustertest.FreePort(t)}
	nats, err := embedded.StartNATS(natsConfig)
	if err != nil {
		t.Fatal(err)
	}
	m := clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Membership.Endpoints, o.Signals.URLs = []string{etcd.Endpoint()}, []string{nats.URL()}
		o.PrefillWorkers, o.DecodeWorkers, o.Membership.LeaseTTL = 2, 2, lease
	})
	want := generate(t, m.Client, request(longPrompt(1), 10, 0.8, disaggregated))

	ctx, stop := context.WithCancel(t.Context())
	served := make([]int, 3)
	var clients sync.WaitGroup
	for i := range served {
		clients.Go(func() {
			for ctx.Err() == nil {
				r, err := m.Generate(t.Context(), request(longPrompt(1), 10, 0.8, disaggregated))
				if err != nil || !slices.Equal(r.Tokens, want.Tokens) {
					t.Errorf("request %d of client %d: tokens %v, %v", served[i], i, r.Tokens, err)
				}
				served[i]++
				clustertest.Pass(20 * time.Millisecond)
			}
		})
	}
	clustertest.Pass(around)
	etcd.Close()
	nats.Close()
	clustertest.Pass(outage)
	etcd, err = embedded.StartEtcd(t.Context(), etcdConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	nats, err = embedded.StartNATS(natsConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	awaitRegistered(t, m.Client, 4)
	clustertest.Pass(around)
	stop()
	clients.Wait()
	for i, n := range served {
		if n == 0 {
			t.Errorf("client %d was never served", i)
		}
	}
	m.AwaitIdle(t)
}

// awaitRegistered waits until n workers are registered again and their load
// reports are new.
func awaitRegistered(t *testing.T, m *clustertest.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		view, err := m.Control.ListWorkers(ctx, &controlv1.ListWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		back := 0
		for _, w := range view.GetWorkers() {
			if w.GetRegistered() && w.GetConnected() && w.GetLoad() != nil && w.GetLoadAge().AsDuration() < 3*time.Second {
				back++
			}
		}
		if back >= n {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d of %d workers came back: %v", back, n, view)
		}
	}
}
