package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
)

const (
	// killLease is the lease of KV reservations: the shortest that may be set.
	killLease = time.Second
	// killPrompt and killTokens make a request of some tenths of a second.
	killPrompt, killTokens = 150, 60
	// killFiles and killMemory are what a process may hold more after all kills of
	// another one: buffers and connections that stay, not those of every request.
	killFiles, killMemory = 8, 8 << 20
)

// deadly is a mesh of one router, one prefill and one decode worker, each a process,
// with a proxy before the decode worker's KV.
type deadly struct {
	t         testing.TB // of what runs now
	network   string
	binaries  clustertest.Binaries
	servers   []string
	address   string
	control   string
	client    *clustertest.Client
	proxy     *faultstest.Proxy
	processes map[string]*clustertest.Process // by target
	reference *clustertest.InProcess
	made      int
}

func startDeadly(t *testing.T, network string) *deadly {
	t.Helper()
	b := clustertest.Build(t)
	m := &deadly{t: t, network: network, binaries: b, address: clustertest.FreeAddress(t), control: clustertest.FreeAddress(t), processes: map[string]*clustertest.Process{}}
	m.servers = clustertest.Servers(clustertest.LaunchEtcd(t, b), clustertest.LaunchNATS(t, b))
	m.reference = clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Engine.Name, o.Engine.Simulated.StepTime.BaseMs = engines.Simulated, 1
		o.PrefillWorkers = 0
	})
	for _, target := range []string{"router", "prefill", "decode"} {
		m.start(target)
	}
	m.client = clustertest.Dial(t, m.address, m.control)
	m.ready()
	return m
}

// start starts a part in the place of one that is gone.
func (m *deadly) start(target string) {
	m.t.Helper()
	m.made++
	args := append([]string{
		"serve", "--target=" + target, "--model=../models/fable", "--engine=simulated", "--kv-memory=64MiB",
		"--simulated-base-ms=4", "--simulated-per-token-ms=0.5", "--lease-ttl=5s",
	}, m.servers...)
	socket := filepath.Join(m.t.TempDir(), "s")
	switch target {
	case "router":
		args = append(args, "--listen="+m.address, "--control="+m.control)
	case "decode":
		listen := clustertest.FreeAddress(m.t)
		if m.proxy != nil {
			m.proxy.Close()
		}
		args = append(args, "--id="+fmt.Sprintf("decode-%d", m.made), "--decode-transfer-lease="+killLease.String(), "--kv-transport="+m.network)
		if m.network == "tcp" {
			m.proxy = faultstest.NewProxy(m.t, m.network, listen)
			args = append(args, "--kv-listen="+listen, "--kv-advertise="+m.proxy.Address())
		} else {
			args = append(args, "--kv-socket="+socket)
		}
	case "prefill":
		args = append(args, "--id="+fmt.Sprintf("prefill-%d", m.made), "--kv-transport="+m.network)
	}
	m.processes[target] = clustertest.Launch(m.t, target, m.binaries.Tandem, args...).AwaitServing(m.t)
	if target == "decode" && m.network != "tcp" {
		// Who connects to the socket's name gets the proxy.
		if err := os.Rename(socket, socket+"r"); err != nil {
			m.t.Fatal(err)
		}
		m.proxy = faultstest.NewProxyAt(m.t, "unix://"+socket, "unix://"+socket+"r")
	}
}

// within lets a subtest fail instead of its test, until what it returns is called.
func (m *deadly) within(t *testing.T) (end func()) {
	whole := m.t
	m.t = lasting{t, whole}
	return func() { m.t = whole }
}

// ready waits until the router can use both workers.
func (m *deadly) ready() {
	m.t.Helper()
	m.client.AwaitPool(m.t, prefillRole, 1)
	m.client.AwaitPool(m.t, decodeRole, 1)
}

// request is one that was not made before, and what the answer has to be.
func (m *deadly) request(number int) (*inferencev1.GenerateRequest, []uint32) {
	m.t.Helper()
	r := freshRequest(number, killPrompt, killTokens, aggregated)
	want := generate(m.t, m.reference.Client, r).Tokens
	r.Mode = disaggregated
	return r, want
}

// deadlyPhases hold a request by its messages, or let it run.
func deadlyPhases() []struct {
	name string
	hold func(p *faultstest.Proxy) *faultstest.Hold // nil: when it decodes
} {
	hold := func(d faultstest.Direction, kind string, n int) func(*faultstest.Proxy) *faultstest.Hold {
		return func(p *faultstest.Proxy) *faultstest.Hold { return p.Hold(d, kind, n) }
	}
	return []struct {
		name string
		hold func(p *faultstest.Proxy) *faultstest.Hold
	}{
		{"reserved", hold(faultstest.ToReceiver, "open", 1)},
		{"opened", hold(faultstest.ToSender, "accept", 1)},
		{"computing", hold(faultstest.ToReceiver, "chunk", 1)},
		{"transferring", hold(faultstest.ToReceiver, "chunk", 3)},
		{"committing", hold(faultstest.ToReceiver, "commit", 1)},
		{"committed", hold(faultstest.ToSender, "committed", 1)},
		{"decoding", nil},
	}
}

// briefPhase is the phase in which each victim is killed where tests may not take long.
var briefPhase = map[string]string{"prefill": "transferring", "decode": "decoding", "router": "committed"}

// After SIGKILL of either worker or of the router in any phase, the others have all their
// blocks back within the lease, and hold no more than before. The request gets a typed
// error or all its tokens, and the next one all of its.
func TestKilledDuringATransfer(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs and kills them")
	}
	for _, network := range transports() {
		t.Run(network, func(t *testing.T) {
			t.Parallel() // much of it is waiting
			m := startDeadly(t, network)
			number := 0
			next := func(t *testing.T) {
				t.Helper()
				number++
				r, want := m.request(number)
				if got := generate(t, m.client, r).Tokens; !slices.Equal(got, want) {
					t.Errorf("the next request: tokens %v, want %v", got, want)
				}
				m.client.AwaitIdle(t)
			}
			next(t)
			var lines []string
			for _, victim := range []string{"prefill", "decode", "router"} {
				before := m.held(victim)
				for _, p := range deadlyPhases() {
					t.Run(victim+" when "+p.name, func(t *testing.T) {
						if p.name != briefPhase[victim] {
							longtest.Only(t)
						}
						defer m.within(t)()
						number++
						r, want := m.request(number)
						c, release := m.reach(t, r, p.hold)
						killed := time.Now()
						m.processes[victim].Kill()
						release()
						m.start(victim)         // those who look after processes do not wait either
						if victim == "router" { // there is nobody to give a reason
							c.check(t, want, codes.Unavailable)
						} else {
							c.check(t, want, codes.OK, codes.Unavailable)
						}
						took := m.freeAfter(t, killed)
						lines = append(lines, fmt.Sprintf("%-8s %-13s %8v %v", victim, p.name, took.Round(time.Millisecond), status.Code(c.err)))
						m.ready()
						next(t)
					})
					if t.Failed() {
						return
					}
				}
				lines = append(lines, m.checkHeld(t, before, victim))
			}
			for _, line := range lines {
				t.Log(line)
			}
			m.frozen(t, "prefill", &number)
			m.frozen(t, "decode", &number)
		})
	}
}

// reach runs a request to its phase.
func (m *deadly) reach(t *testing.T, r *inferencev1.GenerateRequest, hold func(*faultstest.Proxy) *faultstest.Hold) (c *call, release func()) {
	t.Helper()
	var reached <-chan struct{}
	release = func() {}
	c = &call{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	c.cancel = cancel
	progress := func(int) {}
	if hold != nil {
		h := hold(m.proxy)
		reached, release = h.Held(), h.Release
	} else {
		some, once := make(chan struct{}), new(sync.Once)
		reached = some
		progress = func(tokens int) {
			if tokens >= 3 {
				once.Do(func() { close(some) })
			}
		}
	}
	go func() {
		defer close(c.done)
		defer cancel()
		c.result, c.err = m.client.GenerateWith(ctx, r, progress)
	}()
	select {
	case <-reached:
	case <-c.done:
		t.Fatalf("the request ended before: %v, %d tokens", c.err, len(c.result.Tokens))
	}
	return c, release
}

// freeAfter waits until all workers have all their blocks.
func (m *deadly) freeAfter(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	m.client.AwaitIdle(t)
	return time.Since(since)
}

// frozen stops a worker in the middle of a transfer: the other one gives it up within
// the lease, whichever side it is.
func (m *deadly) frozen(t *testing.T, victim string, number *int) {
	t.Run(victim+" freezes when transferring", func(t *testing.T) {
		defer m.within(t)()
		*number++
		r, want := m.request(*number)
		c, release := m.reach(t, r, func(p *faultstest.Proxy) *faultstest.Hold { return p.Hold(faultstest.ToReceiver, "chunk", 3) })
		m.processes[victim].Freeze(t)
		release()
		began := time.Now()
		other := map[string]string{"prefill": "decode", "decode": "prefill"}[victim]
		if m.network == "shm" && victim == "prefill" {
			m.awaitKept(t) // what a process can write when it goes on
			m.processes[victim].Kill()
		}
		m.awaitFree(t, other)
		t.Logf("%s had its blocks back %v after %s froze", other, time.Since(began).Round(time.Millisecond), victim)
		m.processes[victim].Kill()
		m.start(victim)
		c.check(t, want, codes.OK, codes.Unavailable)
		m.ready()
		*number++
		r, want = m.request(*number)
		if got := generate(t, m.client, r).Tokens; !slices.Equal(got, want) {
			t.Errorf("the next request: tokens %v, want %v", got, want)
		}
		m.client.AwaitIdle(t)
	})
}

// awaitKept waits until the decode worker has given up a transfer and still keeps its blocks.
func (m *deadly) awaitKept(t *testing.T) {
	t.Helper()
	clustertest.Await(t, func() string {
		workers, err := m.client.Workers(0)
		for _, w := range workers {
			load := w.GetLoad()
			if w.GetRecord().GetRole() == decodeRole && load.GetBlocksTotal() > 0 && load.GetBlocksFree() < load.GetBlocksTotal() && load.GetRunningSequences() == 0 {
				return ""
			}
		}
		return fmt.Sprintf("the decode worker keeps nothing: %v, %v", workers, err)
	})
}

// awaitFree waits until a worker holds no block.
func (m *deadly) awaitFree(t *testing.T, target string) {
	t.Helper()
	role := map[string]int{"prefill": int(prefillRole), "decode": int(decodeRole)}[target]
	clustertest.Await(t, func() string {
		workers, err := m.client.Workers(0)
		for _, w := range workers {
			load := w.GetLoad()
			if int(w.GetRecord().GetRole()) == role && w.GetConnected() && load.GetBlocksFree() == load.GetBlocksTotal() && load.GetBlocksTotal() > 0 {
				return ""
			}
		}
		return fmt.Sprintf("%s holds blocks: %v, %v", target, workers, err)
	})
}

// processHeld is what a process holds.
type processHeld struct {
	files  int
	memory int64
}

// held is what the processes hold that are not killed.
func (m *deadly) held(victim string) map[string]processHeld {
	all := map[string]processHeld{}
	for target, p := range m.processes {
		if files, memory, ok := p.Held(); ok && target != victim {
			all[target] = processHeld{files, memory}
		}
	}
	return all
}

// checkHeld compares that with what they held before all the kills of the victim, and
// says what came to it.
func (m *deadly) checkHeld(t *testing.T, before map[string]processHeld, victim string) (growth string) {
	t.Helper()
	clustertest.Await(t, func() string {
		growth = victim + " was killed:"
		for target, now := range m.held(victim) {
			was := before[target]
			growth += fmt.Sprintf(" %s %+d files %+d KiB", target, now.files-was.files, (now.memory-was.memory)>>10)
			if now.files > was.files+killFiles || now.memory > was.memory+killMemory {
				return fmt.Sprintf("%s holds %+v, before %+v", target, now, was)
			}
		}
		return ""
	})
	return growth
}
