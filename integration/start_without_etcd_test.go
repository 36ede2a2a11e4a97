package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// startedRouter is a router beside the one of a mesh.
type startedRouter struct {
	*clustertest.Process
	client *clustertest.Client
}

// startRouter starts a router of a mesh, with NATS at a place of its own.
func startRouter(t *testing.T, m *clustertest.Processes, nats string, args ...string) startedRouter {
	t.Helper()
	control := clustertest.FreeAddress(t)
	p := clustertest.Launch(t, "router beside", clustertest.Build(t).Tandem, append(append([]string{
		"serve", "--target=router", "--listen=127.0.0.1:0", "--control=" + control, "--model=../models/fable", "--lease-ttl=2s",
	}, clustertest.Servers(m.Etcd(), nats)...), args...)...).AwaitServing(t)
	return startedRouter{p, clustertest.Dial(t, p.Field(t, "grpc"), control)}
}

// membership is what the router says of it.
func (r startedRouter) membership(t *testing.T) *controlv1.ListWorkersResponse {
	t.Helper()
	view, err := r.client.Control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// serves waits until the router is connected to one worker of each role, and checks
// its answers.
func (r startedRouter) serves(t *testing.T, asks []clustertest.Ask) {
	t.Helper()
	until(t, "both workers", func() bool {
		connected := 0
		for _, w := range r.membership(t).GetWorkers() {
			if w.GetConnected() {
				connected++
			}
		}
		return connected == 2
	})
	for _, ask := range asks {
		if got := generate(t, r.client, ask.Request); !slices.Equal(got.Tokens, ask.Tokens) || got.Text != ask.Text {
			t.Errorf("tokens %v, want %v; route %v", got.Tokens, ask.Tokens, got.Finished.GetRoute())
		}
	}
}

// A router that starts while etcd is away serves: by its own last view, or by that of
// another router. One that has neither says so and ends.
func TestRoutersStartWithoutEtcd(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel()
	m := clustertest.StartProcesses(t, clustertest.Build(t), 1, 1, "--lease-ttl=2s")
	asks := askReference(t, m.Router(), 12)
	state := t.TempDir()
	const noNATS = "nats://127.0.0.1:1"

	first := startRouter(t, m, m.NATS(), "--router-state-dir="+state)
	first.serves(t, asks)
	if first.membership(t).GetOld() {
		t.Error("with etcd its view is old")
	}
	if err := first.Terminate(t); err != nil {
		t.Errorf("the router ended with %v", err)
	}

	m.StopEtcd(t)
	for _, c := range []struct {
		name, nats, state, source string
	}{
		{"by its own view", noNATS, state, "file"},
		{"by another router's", m.NATS(), "off", "peer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			r := startRouter(t, m, c.nats, "--router-state-dir="+c.state)
			r.serves(t, asks[:1])
			t.Logf("its first answer came %s after its start", time.Since(began).Round(time.Millisecond))
			r.serves(t, asks)
			if view := r.membership(t); !view.GetOld() || view.GetSource() != c.source || view.GetAge() == nil {
				t.Errorf("it says of its view: old %v, source %q, age %v", view.GetOld(), view.GetSource(), view.GetAge())
			}
			if !strings.Contains(r.Stderr(), "starting from an old view") {
				t.Errorf("it does not say so:\n%s", r.Stderr())
			}
			r.Kill()
		})
	}
	t.Run("by nothing", func(t *testing.T) {
		r := clustertest.Launch(t, "router beside", clustertest.Build(t).Tandem, append([]string{
			"serve", "--target=router", "--listen=127.0.0.1:0", "--model=../models/fable", "--start-timeout=3s", "--router-state-dir=" + t.TempDir(),
		}, clustertest.Servers(m.Etcd(), noNATS)...)...)
		if err := r.Exit(t); err == nil {
			t.Error("exit status 0")
		}
		lines := strings.Split(strings.TrimSpace(r.Stderr()), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "tandem: cannot reach etcd at") || !strings.Contains(last, "no last view to start from") {
			t.Errorf("it said:\n%s", r.Stderr())
		}
	})
	t.Run("until etcd is back", func(t *testing.T) {
		r := startRouter(t, m, m.NATS(), "--router-state-dir="+state, "--id=router-late")
		r.serves(t, asks)
		m.StartEtcd(t)
		until(t, "the live view", func() bool { view := r.membership(t); return !view.GetOld() && view.GetSource() == "" })
		r.serves(t, asks)
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.Etcd()}, DialTimeout: time.Second, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		until(t, "the router's record", func() bool {
			found, err := client.Get(t.Context(), membership.WorkerKey(controlv1.Role_ROLE_ROUTER, "router-late"))
			return err == nil && len(found.Kvs) == 1
		})
	})
}

// A worker that starts while etcd is away waits for it as long as it is told to.
func TestWorkersWaitForEtcd(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel()
	m := clustertest.StartProcesses(t, clustertest.Build(t), 0, 1, "--lease-ttl=2s")
	m.StopEtcd(t)
	waiting := clustertest.Launch(t, "decode beside", clustertest.Build(t).Tandem, append([]string{
		"serve", "--target=decode", "--id=decode-late", "--model=../models/fable", "--kv-memory=64MiB", "--start-timeout=0",
	}, clustertest.Servers(m.Etcd(), m.NATS())...)...)
	until(t, "it says so", func() bool { return strings.Contains(waiting.Stderr(), "etcd does not answer yet") })
	m.StartEtcd(t)
	waiting.AwaitServing(t)
	m.Router().AwaitPool(t, decodeRole, 2)
}
