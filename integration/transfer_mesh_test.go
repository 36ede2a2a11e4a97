package integration_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
	"github.com/tandem-serving/tandem/services/decode"
	"github.com/tandem-serving/tandem/services/prefill"
	"github.com/tandem-serving/tandem/services/router"
)

const (
	rigBlockTokens = 16
	// rigPrompt and rigTokens make a request of rigNeeds blocks.
	rigPrompt, rigTokens = 100, 12
	rigNeeds             = 7
	// rigDecodeBlocks hold one request but not two.
	rigDecodeBlocks = rigNeeds + 5
	// rigLease is the shortest that a decode worker takes.
	rigLease = time.Second
)

// rig is a router, a prefill and a decode worker in this process: the real ones, on
// simulated engines that can be held up, with a proxy before the decode worker's KV.
type rig struct {
	t         testing.TB // of what runs now
	network   string
	newEngine func(gate *gate, blocks int) (engine.Engine, error)
	spec      model.Spec
	members   *rigMembers
	signals   *rigSignals
	router    *part
	client    *clustertest.Client
	prefill   *rigWorker
	decode    *rigWorker
	made      int
}

// rigWorker is a worker of a rig.
type rigWorker struct {
	*part
	record  *controlv1.WorkerRecord
	driver  *workerdriver.Driver
	gate    *gate
	proxy   *faultstest.Proxy    // of a decode worker
	metrics *prometheus.Registry // of a prefill worker
}

// kill lets nothing of the dead worker wait for its engine.
func (w *rigWorker) kill() {
	w.gate.open()
	w.part.kill()
	w.driver, w.metrics = nil, nil // the engine's shared pages are freed with the last who knows it
	if w.proxy != nil {
		w.proxy.Close()
	}
}

var rigTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Open("../models/fable") })

func newRig(t *testing.T, network string) *rig {
	t.Helper()
	spec, err := model.LoadSpec("../models/fable", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spec.Digest = simulated.Digest(spec)
	return newRigOf(t, network, spec, func(gate *gate, blocks int) (engine.Engine, error) {
		return simulated.New(simulated.Config{
			Spec: spec, Blocks: blocks, BlockTokens: rigBlockTokens, MaxBatchTokens: 256, MaxSequences: 8,
			StepTime: latency.Model{BaseMs: 1}, Wait: gate.wait, SharedKV: network == "shm",
		})
	})
}

func newRigOf(t *testing.T, network string, spec model.Spec, newEngine func(*gate, int) (engine.Engine, error)) *rig {
	t.Helper()
	g := &rig{t: t, network: network, spec: spec, newEngine: newEngine, members: &rigMembers{changed: make(chan struct{})}, signals: new(rigSignals)}
	g.startPrefill()
	g.startDecode()
	g.startRouter()
	return g
}

func (g *rig) newWorker(blocks int) (*rigWorker, engine.Engine) {
	g.t.Helper()
	g.made++
	w := &rigWorker{part: newPart(g.t), gate: new(gate)}
	e, err := g.newEngine(w.gate, blocks)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(w.kill)
	return w, e
}

func (g *rig) identity(role controlv1.Role, addresses ...string) membership.Identity {
	return membership.Identity{ID: fmt.Sprintf("worker-%d", g.made), Epoch: membership.NewEpoch(), Role: role, Addresses: addresses}
}

// startPrefill makes another prefill worker and registers it in the present one's
// place, which it returns.
func (g *rig) startPrefill() (before *rigWorker) {
	g.t.Helper()
	w, e := g.newWorker(8 * rigNeeds)
	server := rpc.NewServer(rpc.ServerConfig{})
	w.metrics = prometheus.NewRegistry()
	identity := g.identity(prefillRole, "")
	service, err := prefill.New(prefill.Config{Limits: worker.Limits{ChunkTokens: 2 * rigBlockTokens, MaxWaiting: 8, OutputShare: 1}}, prefill.Deps{
		Deps: workerdriver.Deps{
			Identity: identity, Engine: e, Signals: g.signals.of(identity), Logger: slog.New(slog.DiscardHandler), Registerer: w.metrics,
		},
		Exchange: kvtransfer.Exchange{Dial: func(address string) (*grpc.ClientConn, error) {
			return w.dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		}},
		KVMapPages: g.network == "shm", KVOnlyMapped: g.network == "shm",
	})
	if err != nil {
		g.t.Fatal(err)
	}
	service.Register(server)
	identity.Addresses = []string{w.serve(g.t, server)}
	w.run(g.t, service.Run)
	w.driver, w.record = service.Driver(), identity.Record()
	worker.Describe(w.record, e, worker.Limits{MaxWaiting: 8})
	before, g.prefill = g.prefill, w
	g.list()
	return before
}

// startDecode makes another decode worker and registers it in the present one's
// place, which it returns.
func (g *rig) startDecode() (before *rigWorker) {
	g.t.Helper()
	w, e := g.newWorker(rigDecodeBlocks)
	server := rpc.NewServer(rpc.ServerConfig{})
	// The address of the proxy goes into tickets, and that of the receiver into the
	// proxy: so there are listeners before there is a worker.
	w.proxy = faultstest.NewProxy(g.t, g.network, "")
	identity := g.identity(decodeRole, "")
	identity.KVAddresses = []string{w.proxy.Address()}
	var sharing *net.UnixListener
	pagesSocket := ""
	if g.network == "shm" {
		sharing, pagesSocket = listenPages(g.t)
	}
	service, err := decode.New(decode.Config{Limits: worker.Limits{ChunkTokens: 2 * rigBlockTokens, MaxWaiting: 8, OutputShare: 1}, TransferLease: rigLease, TransferIdle: 12 * rigLease, ReserveShare: 1, TransferCreditBytes: 1 << 20, KVEncoding: "native"}, decode.Deps{
		Deps: workerdriver.Deps{
			Identity: identity, Engine: e, Signals: g.signals.of(identity), Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		},
		KVPagesSocket: pagesSocket,
	})
	if err != nil {
		g.t.Fatal(err)
	}
	kv := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: service.KVMessageBytes()}))
	service.RegisterKV(kv)
	service.Register(server)
	w.proxy.Retarget(w.serveKV(g.t, g.network, kv))
	if sharing != nil {
		w.servePages(g.t, sharing, service.ServePages)
	}
	identity.Addresses = []string{w.serve(g.t, server)}
	w.run(g.t, service.Run)
	w.driver, w.record = service.Driver(), identity.Record()
	worker.Describe(w.record, e, worker.Limits{MaxWaiting: 8})
	before, g.decode = g.decode, w
	g.list()
	return before
}

// startRouter makes another router in the present one's place, which it returns.
func (g *rig) startRouter() (before *part) {
	g.t.Helper()
	tok, err := rigTokenizer()
	if err != nil {
		g.t.Fatal(err)
	}
	p := newPart(g.t)
	service, err := router.New(router.DefaultConfig(), router.Deps{
		ID: "router-1", Models: []router.Model{{Spec: g.spec, Tokenizer: tok}}, Members: g.members, Signals: g.signals, Publisher: g.signals,
		Dial: func(address string) (*grpc.ClientConn, error) { return p.dial(address, rpc.ClientConfig{}) },
	})
	if err != nil {
		g.t.Fatal(err)
	}
	server := rpc.NewServer(rpc.ServerConfig{})
	service.Register(server)
	service.RegisterControl(server)
	address := p.serve(g.t, server)
	p.run(g.t, service.Run)
	if g.client != nil {
		_ = g.client.Conn.Close()
	}
	before, g.router, g.client = g.router, p, clustertest.Dial(g.t, address, address)
	clustertest.Await(g.t, func() string {
		workers, err := g.client.Workers(controlv1.Role_ROLE_UNSPECIFIED)
		connected := 0
		for _, w := range workers {
			if w.GetConnected() {
				connected++
			}
		}
		if connected < 2 {
			return fmt.Sprintf("the router is connected to %d workers: %v", connected, err)
		}
		return ""
	})
	return before
}

// within lets a subtest fail instead of its test, until what it returns is called.
func (g *rig) within(t *testing.T) (end func()) {
	whole := g.t
	g.t = lasting{t, whole}
	return func() { g.t = whole }
}

// list tells routers which workers there are.
func (g *rig) list() {
	var records []*controlv1.WorkerRecord
	for _, w := range []*rigWorker{g.prefill, g.decode} {
		if w != nil {
			records = append(records, w.record)
		}
	}
	g.members.set(records)
}

// request is one that nobody has made before, if number is new.
func (g *rig) request(number int, mode inferencev1.Mode) *inferencev1.GenerateRequest {
	return freshRequest(number, rigPrompt, rigTokens, mode)
}

// freshRequest is a request whose prompt has nothing in common with those of other
// numbers.
func freshRequest(number, promptTokens, maxTokens int, mode inferencev1.Mode) *inferencev1.GenerateRequest {
	random := rand.New(rand.NewPCG(uint64(number), 11))
	ids := make([]uint32, promptTokens)
	for i := range ids {
		ids[i] = 10 + random.Uint32N(4000)
	}
	return &inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}},
		MaxTokens: proto.Uint32(uint32(maxTokens)),
		Sampling:  &inferencev1.Sampling{Temperature: proto.Float32(0.8), Seed: proto.Uint64(uint64(number))},
		Mode:      mode,
	}
}

// held says what of the workers is not free.
func (g *rig) held() string {
	for _, w := range []*rigWorker{g.prefill, g.decode} {
		if what := w.held(); what != "" {
			return what
		}
	}
	workers, err := g.client.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	if err != nil {
		return err.Error()
	}
	for _, w := range workers {
		if w.GetInFlight() > 0 {
			return fmt.Sprintf("the router has %d requests on %s", w.GetInFlight(), w.GetRecord().GetId())
		}
	}
	return ""
}

func (w *rigWorker) held() string {
	load, _ := w.driver.Load()
	if load.BlocksFree != load.BlocksTotal || load.BlocksReserved+load.BlocksQuarantined+load.WaitingSequences+load.RunningSequences != 0 {
		return fmt.Sprintf("%s: %+v", w.record.GetId(), load)
	}
	return ""
}

// freeAfter waits until nothing is held, and says how long that took.
func freeAfter(t testing.TB, since time.Time, held ...func() string) time.Duration {
	t.Helper()
	limit, tick := time.NewTimer(timeout), time.NewTicker(2*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		what := ""
		for _, h := range held {
			if what = h(); what != "" {
				break
			}
		}
		if what == "" {
			return time.Since(since)
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Errorf("stranded after %v: %s", timeout, what)
			return timeout
		}
	}
}
