package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// routersMesh is a mesh of processes on the simulated engine, with two routers and two
// workers of each role.
type routersMesh struct {
	t        *testing.T
	binaries clustertest.Binaries
	common   []string // arguments of every part
	routers  []*routerProcess
	workers  []*workerProcess
}

type routerProcess struct {
	id, address, control string
	process              *clustertest.Process
	client               *clustertest.Client
}

type workerProcess struct {
	id, target string
	process    *clustertest.Process
}

func startRoutersMesh(t *testing.T) *routersMesh {
	t.Helper()
	m := &routersMesh{t: t, binaries: clustertest.Build(t)}
	etcd, nats := clustertest.LaunchEtcd(t, m.binaries), clustertest.LaunchNATS(t, m.binaries)
	m.common = append([]string{
		"--model=../models/fable", "--kv-memory=64MiB", "--engine=simulated", fmt.Sprintf("--simulated-base-ms=%d", simulatedMs), "--lease-ttl=" + lease.String(),
	}, clustertest.Servers(etcd, nats)...)
	for i := range 2 {
		r := &routerProcess{id: fmt.Sprintf("router-%d", i+1), address: clustertest.FreeAddress(t), control: clustertest.FreeAddress(t)}
		r.client = clustertest.Dial(t, r.address, r.control)
		m.routers = append(m.routers, r)
		m.startRouter(r)
	}
	for _, target := range []string{"prefill", "prefill", "decode", "decode"} {
		w := &workerProcess{id: fmt.Sprintf("%s-%d", target, len(m.workers)+1), target: target}
		m.workers = append(m.workers, w)
		m.startWorker(w)
	}
	m.awaitPools()
	return m
}

func (m *routersMesh) serve(target, id string, args ...string) *clustertest.Process {
	m.t.Helper()
	args = append([]string{"serve", "--target=" + target, "--id=" + id}, args...)
	return clustertest.Launch(m.t, id, m.binaries.Tandem, append(args, m.common...)...)
}

func (m *routersMesh) startRouter(r *routerProcess) {
	m.t.Helper()
	r.process = m.serve("router", r.id, "--listen="+r.address, "--control="+r.control, "--router-state-dir="+m.t.TempDir()).AwaitServing(m.t)
}

func (m *routersMesh) startWorker(w *workerProcess) {
	m.t.Helper()
	w.process = m.serve(w.target, w.id).AwaitServing(m.t)
}

// awaitPools waits until both routers can use two workers of each role.
func (m *routersMesh) awaitPools() {
	m.t.Helper()
	for _, r := range m.routers {
		for _, role := range []controlv1.Role{prefillRole, decodeRole} {
			r.client.AwaitPool(m.t, role, 2)
		}
	}
}

// idle waits until nothing is left anywhere.
func (m *routersMesh) idle() {
	m.t.Helper()
	for _, r := range m.routers {
		r.client.AwaitIdle(m.t)
	}
}

func (m *routersMesh) addresses() (all []string) {
	for _, r := range m.routers {
		all = append(all, r.address)
	}
	return all
}

// serviceConfig is the one that docs/deploying.md gives to clients of gRPC.
func serviceConfig(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(checkoutRoot(t), "docs", "deploying.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(block[1], "retryPolicy") {
			return block[1]
		}
	}
	t.Fatal("docs/deploying.md has no service config")
	return ""
}

// roll says how often each process of TestRollingRestart is restarted.
const rolls = 2

// Every worker and both routers are restarted, one after the other, under load. Clients that
// know both routers, Tandem's own and any client of gRPC with the service config of the
// pages, do not notice.
func TestRollingRestart(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	asks := simulatedAsks(t)
	m := startRoutersMesh(t)
	ours := clustertest.StartLoad(t, clustertest.DialRouters(t, m.addresses()...), streams, asks)
	others := clustertest.StartLoad(t, clustertest.DialServiceConfig(t, serviceConfig(t), m.addresses()...), streams, asks)
	began := time.Now()
	restarts := 0
	served := func() {
		ours.AwaitEach(t)
		others.AwaitEach(t)
	}
	for range rolls {
		for _, w := range m.workers {
			if err := w.process.Terminate(t); err != nil {
				t.Errorf("%s ended with %v\n%s", w.id, err, w.process.Stderr())
			}
			m.startWorker(w)
			m.awaitPools()
			served()
			restarts++
		}
		for _, r := range m.routers {
			if err := r.process.Terminate(t); err != nil {
				t.Errorf("%s ended with %v\n%s", r.id, err, r.process.Stderr())
			}
			m.startRouter(r)
			m.awaitPools()
			served()
			restarts++
		}
	}
	ours.Stop(t)
	others.Stop(t)
	m.idle()
	t.Logf("%d restarts in %v: %d requests of our client and %d of gRPC's were served, none failed, %d went on at another router",
		restarts, time.Since(began).Round(time.Second), ours.Served(), others.Served(), ours.Moved())
}

// Routers die under load. Our client loses no request: each goes on at the other router, with
// the same tokens. A client of gRPC loses those that had begun at the router that died, since
// gRPC sends no request again of which something came, and no other.
func TestRoutersAreKilled(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	asks := simulatedAsks(t)
	m := startRoutersMesh(t)
	ours := clustertest.StartLoad(t, clustertest.DialRouters(t, m.addresses()...), streams, asks)
	others := clustertest.StartLoad(t, clustertest.DialServiceConfig(t, serviceConfig(t), m.addresses()...), streams, asks)
	var lost []clustertest.Failure
	kills := 0
	for range rolls {
		for _, r := range m.routers {
			ours.AwaitServed(t, streams)
			others.AwaitServed(t, streams)
			r.process.Kill()
			kills++
			ours.AwaitEach(t)
			others.AwaitEach(t)
			m.startRouter(r)
			m.awaitPools()
			failures := others.Failures()
			if len(failures) > streams {
				t.Errorf("%d requests failed when %s was killed, more than ran", len(failures), r.id)
			}
			lost = append(lost, failures...)
		}
	}
	for _, f := range lost {
		if status.Code(f.Err) != codes.Unavailable || rpc.Reason(f.Err) != "" {
			t.Errorf("request failed %v", f)
		}
	}
	ours.Stop(t)
	others.Stop(t)
	m.idle()
	if ours.Moved() == 0 {
		t.Error("no request of our client went on at another router: the kills hit nothing")
	}
	t.Logf("%d routers killed: our client had %d answers and lost none, %d went on elsewhere; gRPC's had %d, and lost %d that had begun",
		kills, ours.Served(), ours.Moved(), others.Served(), len(lost))
}
