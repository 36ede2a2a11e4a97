package prefill_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
	"github.com/tandem-serving/tandem/pkg/workerdriver/drivertest"
	"github.com/tandem-serving/tandem/services/prefill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	layers      = 3
	blockTokens = 4
	poolBlocks  = 40
	chunkTokens = 16
	maxWaiting  = 4
	workerEpoch = 7
	stepTime    = 12 * time.Millisecond // 4 ms a layer
)

var prompt, task, wantError = drivertest.Prompt, drivertest.Task, drivertest.WantError

func newEngine(t *testing.T, hold func(context.Context, time.Duration) error) *simulated.Engine {
	t.Helper()
	e, err := simulated.New(simulated.Config{
		Spec: drivertest.Spec(), Blocks: poolBlocks, BlockTokens: blockTokens, MaxBatchTokens: 64, MaxSequences: 8,
		StepTime: latency.Model{BaseMs: float64(stepTime / time.Millisecond)}, Wait: hold,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// firstToken is what one engine draws that computes the whole prompt at once.
func firstToken(t *testing.T, tokens []uint32) uint32 {
	t.Helper()
	e, err := simulated.New(simulated.Config{Spec: drivertest.Spec(), Blocks: 100, BlockTokens: blockTokens, MaxBatchTokens: 256, MaxSequences: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := engine.Sequence{Sample: &engine.Sample{}}
	for i, token := range tokens {
		s.Tokens = append(s.Tokens, int32(token))
		s.Blocks = append(s.Blocks, kvcache.BlockID(i)) // more than needed
	}
	out, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}})
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out.Tokens[0])
}

// network finds listeners in memory by address.
type network struct {
	mu          sync.Mutex
	listeners   map[string]*bufconn.Listener
	connections map[string][]net.Conn
	wrap        map[string]func(net.Conn) net.Conn // what a connection to an address is
}

func newNetwork() *network {
	return &network{listeners: map[string]*bufconn.Listener{}, connections: map[string][]net.Conn{}}
}

func (n *network) listen(address string) *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := bufconn.Listen(1 << 20)
	n.listeners[address] = l
	return l
}

func (n *network) dial(address string) (*grpc.ClientConn, error) {
	return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		n.mu.Lock()
		l := n.listeners[address]
		n.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("nobody listens on %s", address)
		}
		conn, err := l.DialContext(ctx)
		if err == nil {
			n.mu.Lock()
			n.connections[address] = append(n.connections[address], conn)
			wrap := n.wrap[address]
			n.mu.Unlock()
			if wrap != nil {
				return wrap(conn), nil
			}
		}
		return conn, err
	}}))
}

// kill is the death of the process at an address: its connections break and
// nobody listens any more.
func (n *network) kill(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, address)
	for _, conn := range n.connections[address] {
		_ = conn.Close()
	}
}

// rig is a prefill worker behind its gRPC server.
type rig struct {
	t       *testing.T
	network *network
	engine  *simulated.Engine
	service *prefill.Service
	signals *drivertest.Signals
	prefill workerv1.PrefillClient
	worker  workerv1.WorkerClient
	metrics *prometheus.Registry
	stop    func() // ends Run, once

	layers drivertest.Layers
}

// newRig starts a worker for the rest of the test, which must be a bubble.
func newRig(t *testing.T) *rig {
	t.Helper()
	return newWorker(t, newNetwork(), "prefill-1", func(*prefill.Config, *prefill.Deps) {})
}

// newWorker starts a worker of an id, with what change makes of it.
func newWorker(t *testing.T, network *network, id string, change func(*prefill.Config, *prefill.Deps)) *rig {
	t.Helper()
	g := &rig{t: t, network: network, signals: drivertest.NewSignals(), metrics: prometheus.NewRegistry()}
	g.engine = newEngine(t, g.layers.Wait)
	address := id + ":1"
	cfg := prefill.Config{Limits: worker.Limits{ChunkTokens: chunkTokens, MaxWaiting: maxWaiting, OutputShare: 1}}
	deps := prefill.Deps{
		Deps: workerdriver.Deps{
			Identity: membership.Identity{ID: id, Epoch: workerEpoch, Role: controlv1.Role_ROLE_PREFILL, Addresses: []string{address}}, Engine: g.engine,
			Signals: g.signals, Logger: slog.New(slog.DiscardHandler), Registerer: g.metrics,
		},
		Exchange: kvtransfer.Exchange{Dial: g.network.dial},
	}
	change(&cfg, &deps)
	var err error
	if g.service, err = prefill.New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	stop := serve(t, g.network.listen(address), g.service.Register)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- g.service.Run(ctx) }()
	conn, err := g.network.dial(address)
	if err != nil {
		t.Fatal(err)
	}
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		g.stop()
		stop()
	})
	g.prefill, g.worker = workerv1.NewPrefillClient(conn), workerv1.NewWorkerClient(conn)
	return g
}

// serve runs a gRPC server until stop, which breaks all that is connected.
func serve(t *testing.T, listener net.Listener, register func(grpc.ServiceRegistrar)) (stop func()) {
	t.Helper()
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: 64 << 20}))
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = server.Stop(now) // it says that calls were cut off
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

// answer is what Run said.
type answer struct {
	started *workerv1.PrefillStarted
	first   *workerv1.FirstToken
	sent    *workerv1.KvSent
	err     error
}

// run sends one request and reads the answer, checking the order of its events.
func (g *rig) run(ctx context.Context, request *workerv1.PrefillRequest) answer {
	g.t.Helper()
	stream, err := g.prefill.Run(ctx, request)
	if err != nil { // ctx has ended already
		return answer{err: err}
	}
	return g.read(stream, false)
}

func (g *rig) call(ctx context.Context, request *workerv1.PrefillRequest) grpc.ServerStreamingClient[workerv1.PrefillEvent] {
	g.t.Helper()
	stream, err := g.prefill.Run(ctx, request)
	if err != nil {
		g.t.Fatal(err)
	}
	return stream
}

func (g *rig) read(stream grpc.ServerStreamingClient[workerv1.PrefillEvent], untilFirst bool) (a answer) {
	g.t.Helper()
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if a.sent == nil {
				g.t.Error("the answer ended without Sent")
			}
			return a
		}
		if err != nil {
			a.err = err
			return a
		}
		switch e := event.GetEvent().(type) {
		case *workerv1.PrefillEvent_Started:
			if a.started != nil || a.first != nil || a.sent != nil {
				g.t.Error("Started is not the first event")
			}
			a.started = e.Started
		case *workerv1.PrefillEvent_FirstToken:
			if a.started == nil || a.first != nil || a.sent != nil {
				g.t.Error("FirstToken does not follow Started")
			}
			if a.first = e.FirstToken; untilFirst {
				return a
			}
		case *workerv1.PrefillEvent_Sent:
			if a.first == nil || a.sent != nil {
				g.t.Error("Sent does not follow FirstToken")
			}
			a.sent = e.Sent
		}
	}
}

// idle checks that nothing is left of any request.
func (g *rig) idle() {
	g.t.Helper()
	drivertest.WantIdle(g.t, g.service.Driver())
}

// works checks that the next request is served rightly, with a fresh receiver.
func (g *rig) works(p *peer, seed int) {
	g.t.Helper()
	tokens := prompt(37, seed)
	r := p.reserve(len(tokens), 0)
	a := g.run(context.Background(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
	if a.err != nil {
		g.t.Fatalf("the next request failed: %v", a.err)
	}
	if want := firstToken(g.t, tokens); a.first.GetTokenId() != want {
		g.t.Errorf("the next request got token %d, want %d", a.first.GetTokenId(), want)
	}
	p.holdsKVOf(r, tokens, 0)
}
