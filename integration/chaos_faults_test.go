package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// chaosFault does something to the mesh and undoes it. When it returns, what it broke
// is well again, or about to be.
type chaosFault struct {
	name string
	kind string // of the report, in the plural
	run  func(m *chaosMesh, random *rand.Rand)
}

// chaosFaults never leave a role without a worker that is well, and never both routers.
func chaosFaults() []chaosFault {
	return []chaosFault{
		{"a worker is killed and another starts", "kills", killWorker},
		{"a worker freezes", "stops", freezeWorker},
		{"a worker's connections are cut", "cuts", cutWorker},
		{"a worker is not heard of, its connections stay", "silences", silenceWorker},
		{"a worker's links are slow", "slow links", slowWorker},
		{"a worker drains and another starts", "drains", drainWorker},
		{"a router is killed and starts again", "kills", killRouter},
		{"a router starts while etcd is away", "outages", startRouterWithoutEtcd},
		{"etcd and NATS are away", "outages", serversAway},
		{"the block store is killed and starts again", "kills", killStore},
		{"a worker with other weights joins", "impostors", foreignWorker("--model", "")},
		{"a worker with weights in int8 joins", "impostors", foreignWorker("--cpu-weights", "int8")},
		{"records of workers that do not exist", "impostors", bogusRecords},
		{"a worker that refuses everything for good", "impostors", lyingWorker(codes.InvalidArgument)},
		{"a worker that says that deadlines are over", "impostors", lyingWorker(codes.DeadlineExceeded)},
		{"a worker that ends everything with OK", "impostors", lyingWorker(codes.OK)},
		{"reports that every worker is full", "forgeries", forgedReports},
		{"a worker's record is removed", "forgeries", removeRecord},
		{"another record is written over a worker's", "forgeries", overwriteRecord},
	}
}

// pause waits, between least and most.
func pause(random *rand.Rand, least, most time.Duration) {
	clustertest.Pass(least + time.Duration(random.Int64N(int64(most-least))))
}

func pick[E any](random *rand.Rand, from []E) E { return from[random.IntN(len(from))] }

// anyWorker is a prefill or decode worker.
func (m *chaosMesh) anyWorker(random *rand.Rand) *chaosPart {
	return pick(random, m.pool(pick(random, []string{"prefill", "decode"})))
}

func killWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	m.remove(w)
	pause(random, 0, time.Second)
	m.add(w.target)
}

func slowWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	w.proxy.Slow(20_000 + random.IntN(1_000_000))
	pause(random, 500*time.Millisecond, 6*time.Second)
	w.proxy.Slow(0)
}

func drainWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	m.add(w.target)
	if err := w.process.Terminate(m.t); err != nil {
		m.t.Errorf("%s ended with %v\n%s", w.id, err, w.process.Stderr())
	}
	m.remove(w)
}

func freezeWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	w.process.Freeze(m.t)
	pause(random, 200*time.Millisecond, 10*time.Second)
	w.process.Thaw(m.t)
}

func cutWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	for range 1 + random.IntN(4) {
		w.proxy.Cut()
		pause(random, 10*time.Millisecond, 300*time.Millisecond)
	}
}

func silenceWorker(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	w.proxy.Silence()
	pause(random, 200*time.Millisecond, 5*time.Second)
	w.proxy.Speak()
}

func killRouter(m *chaosMesh, random *rand.Rand) {
	router := pick(random, m.routers)
	router.process.Kill()
	m.launch(router)
	router.process.AwaitServing(m.t)
}

func startRouterWithoutEtcd(m *chaosMesh, random *rand.Rand) {
	router := pick(random, m.routers)
	m.etcd.process.Kill()
	router.process.Kill()
	m.launch(router)
	router.process.AwaitServing(m.t)
	m.awaitServes(router)
	m.restart(m.etcd)
}

// awaitServes waits until a router serves a request.
func (m *chaosMesh) awaitServes(router *chaosPart) {
	m.t.Helper()
	clustertest.Await(m.t, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := router.client.Generate(ctx, request("a", 2, 0, aggregated)); err != nil {
			return fmt.Sprintf("%s serves nobody: %v", router.id, err)
		}
		return ""
	})
}

func (m *chaosMesh) restart(server *chaosPart) {
	m.launch(server)
	clustertest.AwaitListening(m.t, server.process, server.address)
}

func serversAway(m *chaosMesh, random *rand.Rand) {
	servers := [][]*chaosPart{{m.etcd}, {m.nats}, {m.etcd, m.nats}}[random.IntN(3)]
	for _, s := range servers {
		s.process.Kill()
	}
	pause(random, time.Second, 8*time.Second)
	for _, s := range servers {
		m.restart(s)
	}
}

func killStore(m *chaosMesh, random *rand.Rand) {
	m.store.process.Kill()
	pause(random, 0, time.Second)
	m.launch(m.store)
	m.store.process.AwaitServing(m.t)
}

// foreignWorker lets a decode and a prefill worker join whose tokens would be others.
func foreignWorker(flag, value string) func(*chaosMesh, *rand.Rand) {
	return func(m *chaosMesh, random *rand.Rand) {
		setting := flag + "=" + value
		if value == "" {
			setting = flag + "=" + spoiledModel(m.t, random)
		}
		var foreign []*chaosPart
		for _, target := range []string{"decode", "prefill"} {
			foreign = append(foreign, m.add(target, setting))
		}
		pause(random, 2*time.Second, 5*time.Second)
		for _, w := range foreign {
			for _, router := range m.routers {
				m.checkExcluded(router, w.id)
			}
			m.remove(w)
		}
	}
}

// checkExcluded checks that a router which knows a worker says that it gives it nothing.
func (m *chaosMesh) checkExcluded(router *chaosPart, id string) {
	workers, err := router.client.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	if err != nil {
		return // it is away
	}
	for _, w := range workers {
		if w.GetRecord().GetId() == id && w.GetConnected() && w.GetExcluded() == "" {
			m.t.Errorf("%s does not say that %s has other weights: %v", router.id, id, w)
		}
	}
}

// recordOf is the record of a live worker, nil if no router knows it.
func (m *chaosMesh) recordOf(id string) *controlv1.WorkerRecord {
	for _, router := range m.routers {
		workers, _ := router.client.Workers(controlv1.Role_ROLE_UNSPECIFIED)
		for _, w := range workers {
			if w.GetRecord().GetId() == id {
				return proto.CloneOf(w.GetRecord())
			}
		}
	}
	return nil
}

func (m *chaosMesh) putRecord(record *controlv1.WorkerRecord) (key string) {
	value, err := protojson.Marshal(record)
	if err != nil {
		m.t.Fatal(err)
	}
	key = membership.WorkerKey(record.GetRole(), record.GetId())
	m.put(key, value)
	return key
}

// bogusRecords writes records whose addresses nobody listens on, or where a gRPC
// server is that is no worker.
func bogusRecords(m *chaosMesh, random *rand.Rand) {
	model := m.recordOf(m.pool("decode")[0].id)
	if model == nil {
		return
	}
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, health.NewServer())
	address := serveChaos(m.t, server)
	defer server.Stop()
	for i := range 100 {
		fake := proto.CloneOf(model)
		fake.Id, fake.Epoch, fake.Addresses = fmt.Sprintf("bogus-%d", i), random.Uint64(), []string{address}
		fake.Role = pick(random, []controlv1.Role{prefillRole, decodeRole})
		if i%2 == 0 {
			fake.Addresses = []string{clustertest.FreeAddress(m.t)}
		}
		m.putRecord(fake)
	}
	pause(random, time.Second, 4*time.Second)
	for _, role := range []string{"prefill", "decode"} {
		m.removeKey("/tandem/v1/workers/"+role+"/bogus-", clientv3.WithPrefix())
	}
}

func serveChaos(t *testing.T, server *grpc.Server) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until it is stopped
	return listener.Addr().String()
}

// liar says that it is a worker of the mesh, and ends every request with one status.
type liar struct {
	workerv1.UnimplementedWorkerServer
	workerv1.UnimplementedDecodeServer
	record *controlv1.WorkerRecord
	code   codes.Code
	asked  atomic.Int64
}

func (l *liar) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	return &workerv1.IdentifyResponse{Record: l.record}, nil
}

func (l *liar) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	return &workerv1.ListBlocksResponse{Epoch: l.record.GetEpoch()}, nil
}

func (l *liar) Run(*workerv1.DecodeRequest, grpc.ServerStreamingServer[workerv1.DecodeEvent]) error {
	l.asked.Add(1)
	return status.Error(l.code, "so it is")
}

func lyingWorker(code codes.Code) func(*chaosMesh, *rand.Rand) {
	return func(m *chaosMesh, random *rand.Rand) {
		record := m.recordOf(m.pool("decode")[0].id)
		if record == nil {
			return
		}
		l := &liar{record: record, code: code}
		record.Id, record.Epoch = fmt.Sprintf("liar-%d", random.IntN(1000)), random.Uint64()
		server := grpc.NewServer()
		workerv1.RegisterWorkerServer(server, l)
		workerv1.RegisterDecodeServer(server, l)
		record.Addresses = []string{serveChaos(m.t, server)}
		defer server.Stop()
		key := m.putRecord(record)
		pause(random, 2*time.Second, 5*time.Second)
		m.removeKey(key)
		m.t.Logf("the liar was asked %d times", l.asked.Load())
	}
}

// forgedReports says of every worker that it is full, more often than it can say itself.
func forgedReports(m *chaosMesh, random *rand.Rand) {
	var records []*controlv1.WorkerRecord
	for _, w := range slices.Concat(m.pool("prefill"), m.pool("decode")) {
		if record := m.recordOf(w.id); record != nil {
			records = append(records, record)
		}
	}
	until := time.Now().Add(2*time.Second + time.Duration(random.Int64N(int64(4*time.Second))))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for sequence := uint64(random.IntN(1 << 20)); time.Now().Before(until); sequence++ {
		for _, record := range records {
			report := &controlv1.LoadReport{
				Origin: &controlv1.Origin{Id: record.GetId(), Epoch: record.GetEpoch(), Sequence: sequence}, Role: record.GetRole(),
				RunningSequences: 1 << 30, BlocksTotal: record.GetCapacity().GetBlocks(),
			}
			payload, err := proto.Marshal(report)
			if err != nil {
				m.t.Error(err)
			}
			_ = m.signals.Publish(signals.LoadSubject(record.GetRole(), record.GetId()), payload) // NATS may be away
		}
		<-tick.C
	}
}

func removeRecord(m *chaosMesh, random *rand.Rand) {
	w := m.anyWorker(random)
	m.removeKey("/tandem/v1/workers/" + w.target + "/" + url.PathEscape(w.id))
	pause(random, time.Second, 6*time.Second)
}

// overwriteRecord writes a record of another incarnation, under no lease.
func overwriteRecord(m *chaosMesh, random *rand.Rand) {
	record := m.recordOf(m.anyWorker(random).id)
	if record == nil {
		return
	}
	record.Epoch = random.Uint64()
	m.putRecord(record)
	pause(random, time.Second, 6*time.Second)
}
