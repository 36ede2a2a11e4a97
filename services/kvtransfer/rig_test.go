package kvtransfer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
	store "github.com/tandem-serving/tandem/services/kvtransfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	layers      = 3
	sliceBytes  = 1000
	storeBlocks = 16
	poolBlocks  = 64
	lease       = 10 * time.Second
)

func layout() kvcache.Layout { return kvtransfertest.Layout(layers, sliceBytes) }

// config is for a store of storeBlocks.
func config() store.Config {
	return store.Config{
		// A block is accounted with its page, its tokens and 256 bytes besides.
		Memory: storeBlocks * (layers*sliceBytes + 4 + 256), LayoutIdle: 10 * time.Minute,
		TransferLease: lease, TransferCreditBytes: 64 << 20, MaxPuts: 8, MaxFetches: 8,
	}
}

// process is a server and what runs beside it, until it is stopped or killed.
type process struct {
	server *rpc.Server
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func startProcess(t *testing.T, listener net.Listener, register func(grpc.ServiceRegistrar), run func(context.Context) error) *process {
	t.Helper()
	p := &process{server: rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{}))}
	register(p.server)
	p.tasks.Go(func() { _ = p.server.Serve(listener) })
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.tasks.Go(func() {
		if err := run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// stop ends what runs, then the server.
func (p *process) stop() {
	p.cancel()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.server.Stop(now)
	p.tasks.Wait()
}

// testStore is a store that serves.
type testStore struct {
	*process
	*cables
	t       *testing.T
	service *store.Service
	signals *signals
	record  *registration
	peer    offload.Store
	metrics *prometheus.Registry
}

// offers counts offers by what became of them.
func (s *testStore) offers(outcome string) (n float64) {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == "tandem_store_offers_total" && l.GetValue() == outcome {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func startStore(t *testing.T, n *network, cfg store.Config, epoch uint64) *testStore {
	t.Helper()
	return startStoreWith(t, n, cfg, epoch, slog.New(slog.DiscardHandler))
}

func startStoreWith(t *testing.T, n *network, cfg store.Config, epoch uint64, logger *slog.Logger) *testStore {
	t.Helper()
	listener, address := n.listen(t)
	s := &testStore{t: t, metrics: prometheus.NewRegistry(), cables: &cables{Listener: listener}, signals: &signals{known: map[uint64]bool{}, began: make(chan struct{})}, record: &registration{}, peer: offload.Store{ID: "store-1", Epoch: epoch, Addresses: []string{address}}}
	var err error
	s.service, err = store.New(cfg, store.Deps{
		Identity: membership.Identity{ID: s.peer.ID, Epoch: epoch, Role: controlv1.Role_ROLE_KVTRANSFER, Addresses: s.peer.Addresses},
		Exchange: kvtransfer.Exchange{Dial: n.dialFrom(s.cables)}, Signals: s.signals, Logger: logger, Registerer: s.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.process = startProcess(t, s.cables, s.service.Register, s.service.Run)
	select {
	case <-s.signals.began: // before Run nothing is taken
	case <-t.Context().Done():
		t.Fatal("the store does not begin")
	}
	s.service.Join(func(record *controlv1.WorkerRecord) membership.Announcement {
		s.record.record = record
		return s.record
	})
	return s
}

// awaitIdle waits until nothing is under way, and checks that all blocks can be had.
func (s *testStore) awaitIdle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.service.Idle(ctx); err != nil {
		s.t.Errorf("something stays under way: %v", err)
	}
	s.service.Check(s.t)
}

// signals records what a store says, and checks that events make sense.
type signals struct {
	mu    sync.Mutex
	last  uint64
	known map[uint64]bool
	wrong string
	load  *controlv1.LoadReport
	began chan struct{} // closed with the first report; nil: nobody waits
}

func (s *signals) Load(report *controlv1.LoadReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.load == nil && s.began != nil {
		close(s.began)
	}
	s.load = report
}

func (s *signals) Kv(_ trace.SpanContext, stored, removed []uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range removed {
		if !s.known[h] {
			s.wrong = fmt.Sprintf("removed %#x, which was not there", h)
		}
		delete(s.known, h)
	}
	for _, h := range stored {
		if s.known[h] {
			s.wrong = fmt.Sprintf("stored %#x twice", h)
		}
		s.known[h] = true
	}
	s.last++
	return s.last
}

// checkSignals compares what events add up to with a snapshot of blocks.
func (s *testStore) checkSignals(n *network, blocks int) {
	s.t.Helper()
	conn, err := n.dial(s.peer.Addresses[0])
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	list, err := workerv1.NewWorkerClient(conn).ListBlocks(s.t.Context(), &workerv1.ListBlocksRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.signals.mu.Lock()
	defer s.signals.mu.Unlock()
	if s.signals.wrong != "" {
		s.t.Error(s.signals.wrong)
	}
	if list.GetEpoch() != s.peer.Epoch || list.GetSequence() != s.signals.last || len(list.GetBlockHashes()) != blocks || len(s.signals.known) != blocks {
		s.t.Errorf("epoch %d, sequence %d, %d blocks in the snapshot, %d by events; want %d, %d, %d", list.GetEpoch(), list.GetSequence(),
			len(list.GetBlockHashes()), len(s.signals.known), s.peer.Epoch, s.signals.last, blocks)
	}
	for _, h := range list.GetBlockHashes() {
		if !s.signals.known[h] {
			s.t.Errorf("%#x is in the snapshot, but was not announced", h)
		}
	}
}

// registration is a record that tests look at.
type registration struct {
	mu     sync.Mutex
	record *controlv1.WorkerRecord
	closed bool
}

func (r *registration) Update(change func(*controlv1.WorkerRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.record)
}

func (r *registration) Close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// testWorker puts and fetches.
type testWorker struct {
	*process
	t        *testing.T
	pages    *kvtransfertest.Pages
	sender   *kvtransfer.Sender
	receiver *kvtransfer.Receiver
	client   *storeclient.Client
	look     func() // looks through blocks
}

func startWorker(t *testing.T, n *network, id string, layout kvcache.Layout) *testWorker {
	t.Helper()
	listener, address := n.listen(t)
	w := &testWorker{t: t, pages: kvtransfertest.NewPages(layout, poolBlocks), look: func() {}}
	var err error
	w.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: id, Epoch: 5, Addresses: []string{address}, Layout: layout, Lease: lease,
		MaxChunkBytes: 2 * sliceBytes, CreditBytes: 2 * sliceBytes, // so that nothing is on its way in one piece
	}, w.pages)
	if err != nil {
		t.Fatal(err)
	}
	w.sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{WorkerID: id, Epoch: 5, Layout: layout, Dial: n.dial}, w.pages)
	if err != nil {
		t.Fatal(err)
	}
	w.client, err = storeclient.NewClient(storeclient.ClientConfig{Dial: n.dial, Sender: w.sender, Receiver: w.receiver, Layout: layout, Check: func(context.Context, []kvcache.BlockID) error {
		w.look()
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.process = startProcess(t, listener, func(r grpc.ServiceRegistrar) { w.receiver.Register(r) }, w.receiver.Run)
	t.Cleanup(func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.client.Close()
		if err := w.sender.Close(closing); err != nil {
			t.Errorf("close the sender: %v", err)
		}
	})
	return w
}

// prefix is n blocks of one token each.
func prefix(n int, seed int32) offload.Prefix {
	p := offload.Prefix{Salt: "salt"}
	for i := range n {
		p.Tokens = append(p.Tokens, seed+int32(i))
	}
	return p
}

// content fills pages with what the KV of a prefix would be: it depends on the
// tokens, not on the pages.
func (w *testWorker) content(p offload.Prefix, i int) []byte {
	page := make([]byte, layers*sliceBytes)
	for at := range page {
		page[at] = byte(p.Tokens[i])*11 + byte(i)*7 + byte(at)*31
	}
	return page
}

// compute writes the KV of a prefix into blocks.
func (w *testWorker) compute(p offload.Prefix, blocks []kvcache.BlockID) {
	w.t.Helper()
	for i, b := range blocks {
		page := w.content(p, i)
		for layer := range layers {
			if err := w.pages.Write(layer, []kvcache.BlockID{b}, page[layer*sliceBytes:(layer+1)*sliceBytes]); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// check compares pages with the KV of a prefix.
func (w *testWorker) check(p offload.Prefix, blocks []kvcache.BlockID) {
	w.t.Helper()
	for i, b := range blocks {
		if !bytes.Equal(w.pages.Page(b), w.content(p, i)) {
			w.t.Errorf("block %d does not hold its KV", i)
		}
	}
}

// put computes and puts a prefix.
func (w *testWorker) put(to offload.Store, p offload.Prefix, from kvcache.BlockID) (uint64, error) {
	w.t.Helper()
	blocks := kvcache.BlockRange(int(from), len(p.Tokens))
	w.compute(p, blocks)
	return w.client.Put(w.t.Context(), to, p, blocks)
}

// put lets a worker put a prefix, and waits until the store has it: the worker
// hears a moment before.
func (s *testStore) put(w *testWorker, p offload.Prefix, from kvcache.BlockID) (uint64, error) {
	s.t.Helper()
	bytes, err := w.put(s.peer, p, from)
	if err == nil {
		s.awaitIdle()
	}
	return bytes, err
}

// raw is the store's services without a Client.
func (s *testStore) raw(n *network) (kvtransferv1.BlockStoreClient, workerv1.WorkerClient) {
	s.t.Helper()
	conn, err := n.dial(s.peer.Addresses[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return kvtransferv1.NewBlockStoreClient(conn), workerv1.NewWorkerClient(conn)
}
