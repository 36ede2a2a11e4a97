package clustertest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Processes is a mesh whose parts are processes of their own, with real etcd and
// NATS servers.
type Processes struct {
	whole    testing.TB // at whose end the parts end, not a subtest's
	binaries Binaries
	args     []string // of every part
	router   *Process
	client   *Client
	address  string // of the router
	control  string // where it serves operators
	etcd     *server
	nats     *server
	workers  []*worker
	started  int // workers, ever
}

// server is an etcd or a NATS server that can be stopped and started again.
type server struct {
	name, path, address string
	args                []string
	process             *Process
}

type worker struct {
	id      string
	role    controlv1.Role
	process *Process
}

// StartProcesses starts a mesh for the rest of the test, with args for every
// part.
func StartProcesses(t testing.TB, b Binaries, prefill, decode int, args ...string) *Processes {
	t.Helper()
	etcd, nats := FreeAddress(t), FreeAddress(t)
	p := &Processes{
		whole:    t,
		binaries: b,
		address:  FreeAddress(t),
		control:  FreeAddress(t),
		etcd:     &server{name: "etcd", path: b.Etcd, address: etcd, args: EtcdArgs(t, etcd)},
		nats:     &server{name: "nats-server", path: b.NATS, address: nats, args: NATSArgs(nats)},
	}
	p.args = append(append([]string{"--model=../models/fable", "--kv-memory=64MiB"}, args...), Servers("http://"+etcd, "nats://"+nats)...)
	p.StartServers(t)
	p.startRouter(t)
	p.client = Dial(t, p.address, p.control)
	p.Scale(t, controlv1.Role_ROLE_PREFILL, prefill)
	p.Scale(t, controlv1.Role_ROLE_DECODE, decode)
	return p
}

// Router is a client of the router.
func (p *Processes) Router() *Client { return p.client }

// Address is where the router serves clients, and Control where operators.
func (p *Processes) Address() string { return p.address }

// Control is where the router serves operators.
func (p *Processes) Control() string { return p.control }

// Cannot says why an ability lacks.
func (p *Processes) Cannot(ability string) string {
	if ability == "Cutter" {
		return "processes of one machine share its loopback interface: the suite over containers cuts them off"
	}
	return "processes have it"
}

func (p *Processes) serve(target string, args ...string) *Process {
	p.whole.Helper()
	args = append([]string{"serve", "--target=" + target}, args...)
	return Launch(p.whole, target, p.binaries.Tandem, append(args, p.args...)...)
}

func (p *Processes) startRouter(t testing.TB) {
	t.Helper()
	p.router = p.serve("router", "--listen="+p.address, "--control="+p.control).AwaitServing(t)
}

// RestartRouter is of RouterRestarter.
func (p *Processes) RestartRouter(t testing.TB) {
	t.Helper()
	if err := p.router.Terminate(t); err != nil {
		t.Errorf("the router ended with %v\n%s", err, p.router.Stderr())
	}
	p.startRouter(t)
}

// KillRouter is of RouterRestarter.
func (p *Processes) KillRouter(t testing.TB) {
	t.Helper()
	p.router.Kill()
	p.startRouter(t)
}

// Scale is of Scaler.
func (p *Processes) Scale(t testing.TB, role controlv1.Role, n int) {
	t.Helper()
	var pool []*worker
	for _, w := range p.workers {
		if w.role == role {
			pool = append(pool, w)
		}
	}
	for len(pool) > n {
		last := pool[len(pool)-1]
		pool = pool[:len(pool)-1]
		p.forget(last)
		if err := last.process.Terminate(t); err != nil {
			t.Errorf("%s ended with %v\n%s", last.id, err, last.process.Stderr())
		}
	}
	for ; len(pool) < n; n-- {
		p.start(t, role)
	}
}

func (p *Processes) start(t testing.TB, role controlv1.Role) {
	t.Helper()
	p.started++
	target := api.Name(role)
	w := &worker{id: fmt.Sprintf("%s-%d", target, p.started), role: role}
	w.process = p.serve(target, "--id="+w.id)
	p.workers = append(p.workers, w)
	w.process.AwaitServing(t)
}

// RestartWorker is of WorkerRestarter.
func (p *Processes) RestartWorker(t testing.TB, id string) {
	t.Helper()
	w := p.worker(t, id)
	p.forget(w)
	if err := w.process.Terminate(t); err != nil {
		t.Errorf("%s ended with %v\n%s", id, err, w.process.Stderr())
	}
	p.start(t, w.role)
}

func (p *Processes) forget(gone *worker) {
	p.workers = slices.DeleteFunc(p.workers, func(w *worker) bool { return w == gone })
}

func (p *Processes) worker(t testing.TB, id string) *worker {
	t.Helper()
	for _, w := range p.workers {
		if w.id == id {
			return w
		}
	}
	t.Fatalf("there is no worker %s", id)
	return nil
}

// Kill is of Killer.
func (p *Processes) Kill(t testing.TB, id string) {
	t.Helper()
	w := p.worker(t, id)
	p.forget(w)
	w.process.Kill()
}

// Pause is of Pauser.
func (p *Processes) Pause(t testing.TB, id string) {
	t.Helper()
	p.worker(t, id).process.Freeze(t)
}

// Unpause is of Pauser.
func (p *Processes) Unpause(t testing.TB, id string) {
	t.Helper()
	p.worker(t, id).process.Thaw(t)
}

// Etcd and NATS are the servers' URLs.
func (p *Processes) Etcd() string { return "http://" + p.etcd.address }

// NATS is as Etcd.
func (p *Processes) NATS() string { return "nats://" + p.nats.address }

// StopEtcd kills etcd alone. One that is asked to stop takes seconds, in which it renews
// no lease and still tells of those that run out.
func (p *Processes) StopEtcd(t testing.TB) {
	t.Helper()
	p.etcd.process.Kill()
}

// StartEtcd starts it again with its data.
func (p *Processes) StartEtcd(t testing.TB) {
	t.Helper()
	p.etcd.start(t, p.whole)
}

// start starts the server, which ends with whole.
func (s *server) start(t, whole testing.TB) {
	t.Helper()
	s.process = Launch(whole, s.name, s.path, s.args...)
	AwaitListening(t, s.process, s.address)
}

// StopServers is of ServerStopper.
func (p *Processes) StopServers(t testing.TB) {
	t.Helper()
	for _, s := range []*server{p.etcd, p.nats} {
		// etcd ends with status 1 or by the signal itself: how does not matter.
		_ = s.process.Terminate(t)
	}
}

// StartServers is of ServerStopper.
func (p *Processes) StartServers(t testing.TB) {
	t.Helper()
	p.etcd.start(t, p.whole)
	p.nats.start(t, p.whole)
}
