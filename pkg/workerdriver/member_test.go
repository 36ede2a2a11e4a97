package workerdriver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

func TestRecord(t *testing.T) {
	e := newEngine(t, latency.Model{})
	id := membership.Identity{ID: "w1", Epoch: 1<<64 - 1, Role: controlv1.Role_ROLE_PREFILL, Addresses: []string{"unix:///a", "h:1"}, Engine: "simulated", Version: "v"}
	record := id.Record()
	worker.Describe(record, e, worker.Limits{MaxWaiting: 9, ChunkTokens: 8})
	capacity, layout := e.Capacity(), e.Capacity().Layout
	want := &controlv1.Capacity{
		Blocks: 40, BlockTokens: 4, ContextTokens: 256, MaxBatchTokens: 64, MaxSequences: 8, MaxWaiting: 9, Threads: uint32(capacity.Threads),
		ChunkTokens: 8,
	}
	if !proto.Equal(record.GetCapacity(), want) {
		t.Errorf("capacity %v, want %v", record.GetCapacity(), want)
	}
	if record.GetId() != "w1" || record.GetEpoch() != id.Epoch || record.GetRole() != id.Role || !slices.Equal(record.GetAddresses(), id.Addresses) ||
		record.GetState() != controlv1.WorkerState_WORKER_STATE_SERVING || record.GetModel() != "toy" || record.GetModelDigest() != "d1" ||
		record.GetEngine() != "simulated" || record.GetVersion() != "v" || record.GetLayoutDigest() != layout.Digest() {
		t.Errorf("record %v", record)
	}
	l := record.GetLayout()
	if l.GetModelDigest() != "d1" || l.GetArithmeticClass() != layout.ArithmeticClass || int(l.GetLayers()) != layout.Layers || int(l.GetKvHeads()) != layout.KVHeads ||
		int(l.GetHeadSize()) != layout.HeadSize || l.GetElementType() != layout.ElementType || int(l.GetBlockTokens()) != layout.BlockTokens ||
		l.GetOrder() != layout.Order || int(l.GetSliceBytes()) != layout.SliceBytes {
		t.Errorf("layout %v of %+v", l, layout)
	}
	text, err := protojson.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	back := new(controlv1.WorkerRecord)
	if err := protojson.Unmarshal(text, back); err != nil || !proto.Equal(back, record) {
		t.Errorf("it does not survive the round trip: %v", err)
	}
}

// A record promises as many sequences as the scheduler runs: fewer than the engine takes where a step
// with those has no space for a block of a prompt.
func TestRecordPromisesThePlacesThereAre(t *testing.T) {
	for _, c := range []struct{ batch, want int }{{8, 5}, {10, 7}, {11, 8}, {64, 8}} {
		e, err := simulated.New(simulated.Config{Spec: spec(), Blocks: 40, BlockTokens: 4, MaxBatchTokens: c.batch, MaxSequences: 8})
		if err != nil {
			t.Fatal(err)
		}
		record := new(controlv1.WorkerRecord)
		if worker.Describe(record, e, worker.Limits{}); int(record.GetCapacity().GetMaxSequences()) != c.want {
			t.Errorf("%d tokens a step: %d sequences, want %d", c.batch, record.GetCapacity().GetMaxSequences(), c.want)
		}
	}
}

// registration records what a member does with it.
type registration struct {
	mu     sync.Mutex
	log    []string
	record *controlv1.WorkerRecord
	closed error
}

func (r *registration) note(format string, arguments ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, arguments...))
}

func (r *registration) Update(change func(*controlv1.WorkerRecord)) {
	change(r.record)
	r.note("update %s", r.record.GetState())
}

func (r *registration) Close(ctx context.Context) error {
	_, bounded := ctx.Deadline()
	r.note("close, bounded %v, cancelled %v", bounded, ctx.Err() != nil)
	return r.closed
}

func (r *registration) register(record *controlv1.WorkerRecord) membership.Announcement {
	r.note("register %s %s", record.GetId(), record.GetState())
	r.record = record
	return r
}

func (r *registration) check(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.log, want) {
		t.Errorf("did\n\t%s\nwant\n\t%s", strings.Join(r.log, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const (
	registered = "register w1 WORKER_STATE_SERVING"
	draining   = "update WORKER_STATE_DRAINING"
	closed     = "close, bounded true, cancelled false"
)

func TestMemberLeavesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		r := new(registration)
		m.Join(r.register)
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 30})
		done := make(chan struct{})
		go func() { defer close(done); m.Drain(t.Context(), time.Second) }()
		synctest.Wait()
		r.check(t, registered, draining) // the record goes only when the work is done
		var running result
		running.read(t, s, false)
		<-done
		r.check(t, registered, draining, closed)
		m.Drain(t.Context(), time.Second)
		r.check(t, registered, draining, closed)
	})
}

func TestMemberThatLeavesIsGoneOnceItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		r := new(registration)
		m.Join(r.register)
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 30})
		m.Leave(0)
		synctest.Wait()
		r.check(t, registered, draining)
		var running result
		running.read(t, s, false)
		time.Sleep(2 * time.Second) // routers have to see that it drains
		r.check(t, registered, draining, closed)
		m.Drain(t.Context(), time.Second)
		r.check(t, registered, draining, closed)
	})
}

func TestMemberThatIsCutStillLeavesTheMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 1000}), controlv1.Role_ROLE_DECODE, nil)
		r := &registration{closed: errors.New("etcd is away")}
		m.Join(r.register)
		m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 30})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m.Drain(ctx, time.Second)
		r.check(t, registered, draining, closed)
		idle(t, m)
	})
}

func TestLeaveIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		r := new(registration)
		m.Join(r.register)
		m.Leave(0)
		m.Leave(time.Minute)
		m.Leave(time.Second) // the last one counts
		r.check(t, registered, draining)
		if !m.Driver().Draining() {
			t.Error("it does not drain")
		}
	})
}

// TestLeaveBeforeJoin: an operator may drain a worker that has not registered.
func TestLeaveBeforeJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{}), controlv1.Role_ROLE_DECODE, nil)
		m.Leave(0)
		r := new(registration)
		m.Join(r.register)
		r.check(t, "register w1 WORKER_STATE_DRAINING")
		m.Drain(t.Context(), time.Second)
		r.check(t, "register w1 WORKER_STATE_DRAINING", closed)
	})
}

// TestJoinAfterDrain: a record that nobody would remove is not left behind.
func TestJoinAfterDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{}), controlv1.Role_ROLE_DECODE, nil)
		m.Drain(t.Context(), time.Second)
		r := new(registration)
		m.Join(r.register)
		r.check(t)
	})
}

func TestGraceThatIsChangedCutsAtTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 100}), controlv1.Role_ROLE_DECODE, nil)
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 150})
		began := time.Now()
		m.Leave(time.Second)
		m.Leave(3 * time.Second)
		m.Leave(0) // asks for no end, and does not take back the one there is
		var r result
		r.read(t, s, false)
		if took := time.Since(began); r.finished.Reason != scheduler.Cancelled || took != 3*time.Second {
			t.Errorf("ended with %v after %v", r.finished.Reason, took)
		}
		idle(t, m)
	})
}

func TestTwoMembersOfOneProcessShareMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	member := func(id string) error {
		cfg := memberConfig(controlv1.Role_ROLE_DECODE, newEngine(t, latency.Model{}))
		cfg.Identity.ID, cfg.Registerer = id, registry
		_, err := workerdriver.NewMember(cfg)
		return err
	}
	if err := errors.Join(member("w1"), member("w2")); err != nil {
		t.Error(err)
	}
	if err := member("w1"); err == nil {
		t.Error("two workers with one id")
	}
}
