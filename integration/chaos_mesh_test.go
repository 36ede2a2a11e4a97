package integration_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
)

// chaosMesh is a mesh of processes with real etcd and NATS servers: two routers, two
// prefill and two decode workers, and a block store. Each worker is told to others by
// the address of a proxy, so that its connections can be cut while it lives.
type chaosMesh struct {
	t        *testing.T
	binaries clustertest.Binaries
	servers  []string // flags that name etcd and NATS
	logs     string   // folder of the event logs
	etcd     *chaosPart
	nats     *chaosPart
	routers  []*chaosPart
	store    *chaosPart
	records  *clientv3.Client
	signals  *nats.Conn

	mu      sync.Mutex
	workers []*chaosPart
	started int
}

// chaosPart is one process that can be started again with the same arguments.
type chaosPart struct {
	id, target string
	path       string
	args       []string
	address    string            // where it listens
	control    string            // where a router serves operators
	proxy      *faultstest.Proxy // before address; nil: none
	client     *clustertest.Client
	process    *clustertest.Process
}

func (m *chaosMesh) launch(p *chaosPart) {
	p.process = clustertest.Launch(m.t, p.id, p.path, p.args...)
}

// startChaosMesh starts the mesh for the rest of the test.
func startChaosMesh(t *testing.T) *chaosMesh {
	t.Helper()
	m := &chaosMesh{t: t, binaries: clustertest.Build(t), logs: cmp.Or(*chaosLogs, t.TempDir())}
	client, natsAddress := clustertest.FreeAddress(t), clustertest.FreeAddress(t)
	m.servers = clustertest.Servers("http://"+client, "nats://"+natsAddress)
	m.etcd = &chaosPart{id: "etcd", path: m.binaries.Etcd, address: client, args: clustertest.EtcdArgs(t, client)}
	m.nats = &chaosPart{id: "nats", path: m.binaries.NATS, address: natsAddress, args: clustertest.NATSArgs(natsAddress)}
	for _, server := range []*chaosPart{m.etcd, m.nats} {
		m.launch(server)
		clustertest.AwaitListening(t, server.process, server.address)
	}
	var err error
	if m.records, err = clientv3.New(clientv3.Config{Endpoints: []string{"http://" + client}, DialTimeout: timeout}); err != nil {
		t.Fatal(err)
	}
	if m.signals, err = nats.Connect("nats://"+natsAddress, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.signals.Close()
		_ = m.records.Close()
	})
	for i := range 2 {
		router := &chaosPart{id: fmt.Sprintf("router-%d", i+1), target: "router", path: m.binaries.Tandem, address: clustertest.FreeAddress(t), control: clustertest.FreeAddress(t)}
		router.args = append([]string{
			"serve", "--target=router", "--id=" + router.id, "--model=../models/fable", "--listen=" + router.address, "--control=" + router.control,
			"--router-state-dir=" + t.TempDir(), "--record=" + m.logs,
		}, m.servers...)
		m.launch(router)
		m.routers = append(m.routers, router)
	}
	for _, target := range []string{"prefill", "prefill", "decode", "decode"} {
		m.add(target)
	}
	m.store = m.add("kvtransfer")
	for _, router := range m.routers {
		router.process.AwaitServing(t)
		router.client = clustertest.Dial(t, router.address, router.control)
	}
	for _, router := range m.routers {
		m.awaitPools(router)
	}
	return m
}

// add starts a worker, a prefill or decode worker with args besides.
func (m *chaosMesh) add(target string, args ...string) *chaosPart {
	m.t.Helper()
	m.mu.Lock()
	m.started++
	p := &chaosPart{id: fmt.Sprintf("%s-%d", target, m.started), target: target, path: m.binaries.Tandem, address: clustertest.FreeAddress(m.t)}
	m.mu.Unlock()
	p.proxy = faultstest.NewProxy(m.t, "tcp", p.address)
	p.args = []string{"serve", "--target=" + target, "--id=" + p.id, "--listen=" + p.address, "--advertise=" + p.proxy.Address(), "--lease-ttl=5s"}
	if target == "kvtransfer" {
		p.args = append(p.args, "--store-memory=64MiB")
	} else {
		p.args = append(p.args, "--model=../models/fable", "--model-name=fable", "--kv-memory=32MiB", "--threads=1", "--record="+m.logs)
	}
	p.args = append(append(p.args, args...), m.servers...)
	m.launch(p)
	p.process.AwaitServing(m.t)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers = append(m.workers, p)
	return p
}

// remove ends a worker that add started, without warning.
func (m *chaosMesh) remove(p *chaosPart) {
	p.process.Kill()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers = slices.DeleteFunc(m.workers, func(w *chaosPart) bool { return w == p })
}

// replay replays all event logs, also of processes that were killed.
func (m *chaosMesh) replay() {
	m.t.Helper()
	logs, err := filepath.Glob(filepath.Join(m.logs, "*.events"))
	if err != nil || len(logs) == 0 {
		m.t.Fatalf("%d event logs: %v", len(logs), err)
	}
	replay := exec.Command(m.binaries.Tandem, append([]string{"replay"}, logs...)...)
	replay.Env = clustertest.Environ()
	out, err := replay.CombinedOutput()
	m.t.Logf("%s", out)
	if err != nil {
		m.t.Errorf("event logs do not give what they gave: %v", err)
	}
}

// pool is the workers of a target, in the order in which they were started.
func (m *chaosMesh) pool(target string) []*chaosPart {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.workers), func(w *chaosPart) bool { return w.target != target })
}

// awaitPools waits until a router can use two workers of each role.
func (m *chaosMesh) awaitPools(router *chaosPart) {
	m.t.Helper()
	for target, role := range map[string]controlv1.Role{"prefill": prefillRole, "decode": decodeRole} {
		want := len(m.pool(target))
		clustertest.Await(m.t, func() string {
			usable, err := router.client.Usable(role)
			if err != nil || len(usable) < want {
				return fmt.Sprintf("%s can use %v of %d %s workers (%v)", router.id, usable, want, target, err)
			}
			return ""
		})
	}
}

// put writes a key into etcd under no lease.
func (m *chaosMesh) put(key string, value []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := m.records.Put(ctx, key, string(value)); err != nil {
		m.t.Logf("put %s: %v", key, err)
	}
}

// removeKey removes what put wrote.
func (m *chaosMesh) removeKey(key string, options ...clientv3.OpOption) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := m.records.Delete(ctx, key, options...); err != nil {
		m.t.Logf("delete %s: %v", key, err)
	}
}

// spoiledModel is a folder with the bundled model of whose weights two in a hundred
// have other mantissas: what a bad disk or a half-finished copy leaves.
func spoiledModel(t *testing.T, random *rand.Rand) string {
	t.Helper()
	const from = "../models/fable"
	dir := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(from, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if entry.Name() == "model.safetensors" {
			weights := content[8+binary.LittleEndian.Uint64(content):] // behind the header
			for i := 0; i+1 < len(weights); i += 2 {
				if random.IntN(50) == 0 {
					weights[i] ^= byte(1 + random.IntN(127)) // the mantissa of a bf16
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
