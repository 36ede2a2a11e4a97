package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

const (
	auto = inferencev1.Mode_MODE_AUTO
	dis  = inferencev1.Mode_MODE_DISAGGREGATED
	agg  = inferencev1.Mode_MODE_AGGREGATED
)

func config() routing.Config {
	return routing.Config{
		Models: []routing.Model{{Name: "fable", Digest: "m"}}, VersionWait: 5 * time.Second,
		QueueLimit: 4, MaxQueueWait: 30 * time.Second, TenantMaxRequests: 100, DisaggregateMinTokens: 64,
		NoWorkerGrace: time.Second, WorkerKeep: time.Minute, LoadStale: 3 * time.Second, ReportDoubt: 500 * time.Millisecond, ReportLag: 100 * time.Millisecond,
		TransferBytesPerSecond: 1e9, NearBest: .1, TPOTHorizonTokens: 64, IndexBlocks: 1000,
		PromptSilence: time.Minute, WorkerSilence: 10 * time.Second, DefaultClass: routing.ClassBatch, RetryShare: 0.5,
	}
}

func record(id string, role controlv1.Role) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{
		Id: id, Role: role, Epoch: 1, State: controlv1.WorkerState_WORKER_STATE_SERVING, ModelDigest: "m", LayoutDigest: 7,
		Capacity: &controlv1.Capacity{Blocks: 128, BlockTokens: 32, MaxBatchTokens: 128, MaxSequences: 2, MaxWaiting: 1},
		Layout:   &kvtransferv1.Layout{ArithmeticClass: "c", Layers: 2, BlockTokens: 32, SliceBytes: 1024},
	}
}

func prefill(id string) *controlv1.WorkerRecord { return record(id, controlv1.Role_ROLE_PREFILL) }
func decode(id string) *controlv1.WorkerRecord  { return record(id, controlv1.Role_ROLE_DECODE) }

// bench drives one router and remembers what it said.
type bench struct {
	t     *testing.T
	f     *routing.Router
	now   time.Time
	last  []routing.Action
	count int
	again bool // hedged attempts are asked for again
}

func newBench(t *testing.T, change func(*routing.Config), records ...*controlv1.WorkerRecord) *bench {
	c := config()
	if change != nil {
		change(&c)
	}
	b := &bench{t: t, f: routing.New(c, rand.New(rand.NewPCG(1, 2))), now: time.Unix(1000, 0)}
	b.do(routing.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		b.do(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: r.GetEpoch()}})
	}
	return b
}

func (b *bench) do(event routing.Event) []routing.Action {
	b.last = b.f.Handle(b.now, event)
	return b.last
}

// pass lets time go by, ticking when the router asks for it.
func (b *bench) pass(d time.Duration) []routing.Action {
	var all []routing.Action
	pass(b.f, &b.now, d, func() { all = append(all, b.do(routing.Tick{})...) })
	return all
}

// pass lets time go by from now on, with a tick when the router asks for it.
func pass(f *routing.Router, now *time.Time, d time.Duration, tick func()) {
	for end := now.Add(d); ; {
		next, due := f.Next()
		if !due || next.After(end) {
			*now = end
			return
		}
		if next.After(*now) {
			*now = next
		}
		tick()
	}
}

func (b *bench) request(mode inferencev1.Mode, tokens int) routing.Request {
	b.count++
	return routing.Request{ID: fmt.Sprint("r", b.count), Tenant: "t", Model: "fable", Mode: mode, Arrived: b.now, Tokens: tokens, MaxNew: 32}
}

// arrive hands a request in and returns the answer, if there is one at once.
func (b *bench) arrive(r routing.Request) (routing.Dispatch, routing.Refusal, bool) {
	return answerTo(r.ID, b.do(routing.Arrived{Request: r}))
}

func answerTo(id string, actions []routing.Action) (routing.Dispatch, routing.Refusal, bool) {
	for _, action := range actions {
		switch a := action.(type) {
		case routing.Dispatch:
			if a.ID == id {
				return a, routing.Refusal{}, true
			}
		case routing.Refuse:
			if a.ID == id {
				return routing.Dispatch{}, a.Refusal, true
			}
		}
	}
	return routing.Dispatch{}, routing.Refusal{}, false
}

// reports numbers the load reports of all tests, which run one by one.
var reports uint64

func load(id string, role controlv1.Role, change func(*controlv1.LoadReport)) routing.LoadReported {
	reports++
	r := &controlv1.LoadReport{
		Origin: &controlv1.Origin{Id: id, Epoch: 1, Sequence: reports}, Role: role, BlocksFree: 128, BlocksTotal: 128,
		StepTime: &controlv1.StepTimeModel{BaseMs: 1, PerTokenMs: .1, Samples: 100},
	}
	if change != nil {
		change(r)
	}
	return routing.LoadReported{Report: r}
}

func TestLeastPredictedWork(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), prefill("p2"), decode("d1"), decode("d2"))
	b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.WaitingTokens, r.WaitingSequences = 5000, 2 }))
	b.do(load("p2", controlv1.Role_ROLE_PREFILL, nil))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	b.do(load("d2", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.StepTime = &controlv1.StepTimeModel{BaseMs: 30, PerTokenMs: .1, Samples: 100}
	}))
	d, _, _ := b.arrive(b.request(auto, 200))
	if d.Prefill.ID != "p2" || d.Decode.ID != "d1" || len(d.Decision.GetCandidates()) != 4 {
		t.Errorf("%v", d)
	}
	for _, c := range d.Decision.GetCandidates() {
		if c.GetCostMs() <= 0 {
			t.Errorf("candidate without cost: %v", c)
		}
	}
}

// TestOtherLayout: why a prefill worker is left out whose pages are others than the
// decode worker's names both.
func TestOtherLayout(t *testing.T) {
	other := prefill("p2")
	other.LayoutDigest, other.Layout = 8, &kvtransferv1.Layout{ArithmeticClass: "c", BlockTokens: 64}
	b := newBench(t, nil, prefill("p1"), other, decode("d1"))
	for id, role := range map[string]controlv1.Role{"p1": controlv1.Role_ROLE_PREFILL, "p2": controlv1.Role_ROLE_PREFILL, "d1": controlv1.Role_ROLE_DECODE} {
		b.do(load(id, role, nil))
	}
	d, _, _ := b.arrive(b.request(auto, 200))
	why := ""
	for _, c := range d.Decision.GetCandidates() {
		if c.GetWorkerId() == "p2" {
			why = c.GetExcluded()
		}
	}
	if d.Prefill.ID != "p1" || !strings.Contains(why, "its KV is c in blocks of 64 tokens") || !strings.Contains(why, "that of d1 is c in blocks of 32 tokens") {
		t.Errorf("%s was chosen, and of p2 is said %q", d.Prefill.ID, why)
	}
}

// A prompt is hashed for the workers that it may go to, once for all that are alike.
func TestBlockKeys(t *testing.T) {
	wide, foreign := decode("d3"), decode("d4")
	wide.Capacity.BlockTokens = 64
	foreign.Model, foreign.ModelDigest = "fable", "other"
	b := newBench(t, nil, prefill("p1"), decode("d1"), decode("d2"), wide, foreign, store("s1"))
	served := routing.Version{Digest: decode("d1").GetModelDigest(), Class: "c"}
	b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: served.Digest, ArithmeticClass: served.Class}}}})
	other := routing.Version{Digest: "other", Class: "c"}
	for _, test := range []struct {
		model   string
		version routing.Version
		want    []routing.BlockKey
	}{
		{"fable", routing.Version{}, []routing.BlockKey{{Version: served, BlockTokens: 32}, {Version: served, BlockTokens: 64}}},
		{"fable", other, []routing.BlockKey{{Version: other, BlockTokens: 32}}},
		{"nobody's", routing.Version{}, nil},
	} {
		got := b.f.BlockKeys(test.model, test.version)
		slices.SortFunc(got, func(a, b routing.BlockKey) int { return a.BlockTokens - b.BlockTokens })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s in %v: %v, want %v", test.model, test.version, got, test.want)
		}
	}
}

// A request that waited for its first worker knows what that has of its prompt, and is
// hashed for it once.
func TestPrefixOfAWorkerThatCameLater(t *testing.T) {
	b := newBench(t, nil)
	r, hashed := b.request(agg, 128), 0
	r.Hash = func(key routing.BlockKey) []kvcache.Hash {
		hashed++
		return []kvcache.Hash{1, 2, 3, 4}
	}
	if _, _, answered := b.arrive(r); answered {
		t.Fatal("answered before there was a worker")
	}
	late := decode("d1")
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{late}, Live: true})
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d1", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: []uint64{1, 2, 3}}})
	d, _, _ := answerTo(r.ID, b.do(routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 1}}))
	if d.Decode.ID != "d1" || d.Decision.GetCandidates()[0].GetCachedTokens() != 96 || hashed != 1 {
		t.Errorf("went to %q, %v, hashed %d times", d.Decode.ID, d.Decision.GetCandidates(), hashed)
	}
}

func TestPrefixIsWorthTheWay(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d1", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1}})
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d2", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, Sequence: 4, BlockHashes: []uint64{1, 2, 3}}})
	r := b.request(agg, 128)
	r.Hashes = hashed(b.f, func(key routing.BlockKey) []kvcache.Hash {
		if key.Version.Class != "c" || key.BlockTokens != 32 {
			t.Errorf("asks for %v", key)
		}
		return []kvcache.Hash{1, 2, 3, 4}
	})
	if d, _, _ := b.arrive(r); d.Decode.ID != "d2" {
		t.Errorf("went to %s", d.Decode.ID)
	}
	// A lost event asks for a snapshot, once.
	event := func(sequence uint64, stored ...uint64) routing.BlocksChanged {
		return routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: "d2", Epoch: 1, Sequence: sequence}, Stored: stored}}
	}
	if actions := b.do(event(5, 9)); len(actions) != 0 {
		t.Errorf("an event that follows gives %v", actions)
	}
	b.do(event(7, 11))
	if actions := b.pass(200 * time.Millisecond); !slices.Equal(actions, []routing.Action{routing.ListBlocks{Worker: routing.Ref{ID: "d2", Epoch: 1}}}) {
		t.Errorf("a gap gives %v", actions)
	}
	if actions := b.do(event(8, 12)); len(actions) != 0 {
		t.Errorf("while it is asked, an event gives %v", actions)
	}
	// If that fails it is asked again later.
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d2", Epoch: 1}})
	if actions := b.pass(2 * time.Second); !slices.Contains(actions, routing.Action(routing.ListBlocks{Worker: routing.Ref{ID: "d2", Epoch: 1}})) {
		t.Errorf("not asked again: %v", actions)
	}
}

// Load reports are old when they come: what was sent since counts on top, so
// that equal requests are spread.
func TestOwnWorkCounts(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), prefill("p2"), decode("d1"), decode("d2"))
	seen := map[string]int{}
	for range 4 {
		for _, id := range []string{"p1", "p2"} {
			b.do(load(id, controlv1.Role_ROLE_PREFILL, nil)) // still says: nothing to do
		}
		d, _, _ := b.arrive(b.request(dis, 100))
		seen[d.Prefill.ID]++
		b.now = b.now.Add(time.Millisecond)
	}
	if seen["p1"] != 2 || seen["p2"] != 2 {
		t.Errorf("spread %v", seen)
	}
	// Two run and one waits on each decode worker: full by the router's account.
	b.arrive(b.request(agg, 10))
	b.arrive(b.request(agg, 10))
	r := b.request(agg, 10)
	if _, _, answered := b.arrive(r); answered {
		t.Error("sent to a full worker")
	}
	if _, _, answered := answerTo(r.ID, b.do(routing.Ended{ID: "r5"})); !answered {
		t.Error("not sent when there was room")
	}
}

func TestStaleReportIsNotUsed(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 0 }))
	r := b.request(agg, 10)
	if _, _, answered := b.arrive(r); answered {
		t.Error("sent to a worker that reports to be full")
	}
	b.now = b.now.Add(4 * time.Second)
	if _, _, answered := answerTo(r.ID, b.do(routing.Tick{})); !answered {
		t.Error("an old report stops dispatch")
	}
	if v := b.f.Workers(b.now); v[0].GetLoadAge().AsDuration() != 4*time.Second {
		t.Errorf("age %s", v[0].GetLoadAge().AsDuration())
	}
}

func TestQueueOrder(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.QueueLimit = 10 }, decode("d1"))
	var running []string
	for range 3 {
		r := b.request(agg, 10)
		b.arrive(r)
		running = append(running, r.ID)
	}
	first, urgent, soon := b.request(agg, 10), b.request(agg, 10), b.request(agg, 10)
	urgent.Priority = 5
	soon.Deadline = b.now.Add(10 * time.Second)
	for _, r := range []routing.Request{first, urgent, soon} {
		if _, _, answered := b.arrive(r); answered {
			t.Fatal("there is no room")
		}
	}
	queued := b.f.Queued(b.now.Add(time.Second))["fable"]
	if len(queued) != 2 || queued[0].GetPriority() != 5 || queued[1].GetRequests() != 2 || queued[1].GetTokens() != 20 || queued[1].GetOldestWaitMs() != 1000 {
		t.Errorf("queued %v", queued)
	}
	for i, want := range []string{urgent.ID, soon.ID, first.ID} {
		if _, _, ok := answerTo(want, b.do(routing.Ended{ID: running[i]})); !ok {
			t.Errorf("%s was not next", want)
		}
	}
}

func TestRefusals(t *testing.T) {
	fill := func(b *bench) {
		for range 3 {
			b.arrive(b.request(agg, 10))
		}
	}
	for _, test := range []struct {
		name    string
		change  func(*routing.Config)
		records []*controlv1.WorkerRecord
		before  func(*bench)
		request func(*routing.Request)
		wait    time.Duration
		code    codes.Code
		reason  string
	}{
		{name: "nobody", wait: 2 * time.Second, code: codes.Unavailable, reason: api.ReasonNoWorkers},
		{name: "queue full", records: []*controlv1.WorkerRecord{decode("d1")}, before: func(b *bench) {
			fill(b)
			for range 4 {
				b.arrive(b.request(agg, 10))
			}
		}, code: codes.ResourceExhausted, reason: api.ReasonQueueFull},
		{name: "queue timeout", records: []*controlv1.WorkerRecord{decode("d1")}, before: fill, wait: time.Minute, code: codes.ResourceExhausted, reason: api.ReasonQueueTimeout},
		{name: "deadline", records: []*controlv1.WorkerRecord{decode("d1")}, before: fill, wait: time.Minute,
			request: func(r *routing.Request) { r.Deadline = r.Arrived.Add(time.Second) }, code: codes.DeadlineExceeded, reason: api.ReasonDeadline},
		{name: "tenant", records: []*controlv1.WorkerRecord{decode("d1")}, before: fill, change: func(c *routing.Config) { c.TenantMaxRequests = 3 },
			code: codes.ResourceExhausted, reason: api.ReasonTenantLimit},
		{name: "never fits", records: []*controlv1.WorkerRecord{decode("d1")},
			request: func(r *routing.Request) { r.MaxNew = 5000 }, code: codes.InvalidArgument, reason: api.ReasonNeverFits},
		{name: "slo ttft", records: []*controlv1.WorkerRecord{decode("d1")}, before: func(b *bench) {
			b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.WaitingTokens = 10000 }))
		}, request: func(r *routing.Request) { r.TTFT = 100 * time.Millisecond }, code: codes.ResourceExhausted, reason: api.ReasonSLOUnattainable},
		{name: "slo ttft in the queue", records: []*controlv1.WorkerRecord{decode("d1")}, before: fill,
			request: func(r *routing.Request) { r.TTFT = 100 * time.Millisecond }, wait: 150 * time.Millisecond, code: codes.ResourceExhausted, reason: api.ReasonSLOUnattainable},
		{name: "slo tpot", records: []*controlv1.WorkerRecord{decode("d1")}, before: func(b *bench) {
			b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
		}, request: func(r *routing.Request) { r.TPOT = time.Microsecond }, code: codes.ResourceExhausted, reason: api.ReasonSLOUnattainable},
		{name: "other model", records: []*controlv1.WorkerRecord{decode("d1")},
			request: func(r *routing.Request) { r.Model = "other" }, wait: 2 * time.Second, code: codes.Unavailable, reason: api.ReasonNoWorkers},
		{name: "forced without prefill", records: []*controlv1.WorkerRecord{decode("d1")},
			request: func(r *routing.Request) { r.Mode = dis }, wait: 2 * time.Second, code: codes.Unavailable, reason: api.ReasonNoWorkers},
		{name: "lost", records: []*controlv1.WorkerRecord{decode("d1")}, request: func(r *routing.Request) {
			r.Attempt = 1
			r.Failures = []routing.Failure{{Worker: routing.Ref{ID: "d1", Epoch: 1}, Gone: true}}
		}, wait: 2 * time.Second, code: codes.Unavailable, reason: api.ReasonWorkerLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.change, test.records...)
			if test.before != nil {
				test.before(b)
			}
			r := b.request(agg, 10)
			if test.request != nil {
				test.request(&r)
			}
			_, refusal, answered := b.arrive(r)
			if test.wait > 0 {
				if answered {
					t.Fatal("answered at once")
				}
				_, refusal, answered = answerTo(r.ID, b.pass(test.wait))
			}
			if !answered || refusal.Code != test.code || refusal.Reason != test.reason || refusal.Message == "" {
				t.Errorf("answered %v: %+v", answered, refusal)
			}
			if wantRetry := test.code == codes.Unavailable || test.code == codes.ResourceExhausted; wantRetry != (refusal.RetryAfter > 0) {
				t.Errorf("retry after %s", refusal.RetryAfter)
			}
		})
	}
}

// A request may want more tokens than the context of workers has: what it needs ends there. The
// longest context counts, for a smaller worker would end the answer before.
func TestContextOfWorkers(t *testing.T) {
	sized := func(id string, tokens uint32) *controlv1.WorkerRecord {
		record := decode(id)
		record.Capacity.ContextTokens, record.Capacity.Blocks = tokens, tokens/32
		return record
	}
	for _, test := range []struct {
		name    string
		records []*controlv1.WorkerRecord
		want    string
	}{
		{"one", []*controlv1.WorkerRecord{sized("d1", 512)}, "d1"},
		{"a smaller one first", []*controlv1.WorkerRecord{sized("d1", 256), sized("d2", 512)}, "d2"},
		{"of no stated context", []*controlv1.WorkerRecord{decode("d1")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, test.records...)
			r := b.request(agg, 10)
			r.MaxNew = 5000
			d, refusal, answered := b.arrive(r)
			if refuses := refusal.Reason == api.ReasonNeverFits; !answered || d.Decode.ID != test.want || refuses != (test.want == "") {
				t.Errorf("goes to %q, %+v", d.Decode.ID, refusal)
			}
		})
	}
}

// A worker that has lost its connection for a moment is waited for where the others are too small, and the
// answer is not cut to what they have.
func TestContextOfWorkersWithoutConnection(t *testing.T) {
	sized := func(id string, tokens uint32) *controlv1.WorkerRecord {
		record := decode(id)
		record.Capacity.ContextTokens, record.Capacity.Blocks = tokens, tokens/32
		return record
	}
	for name, records := range map[string][]*controlv1.WorkerRecord{
		"the only one":         {sized("d2", 512)},
		"beside a smaller one": {sized("d1", 256), sized("d2", 512)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, records...)
			lost := routing.Ref{ID: "d2", Epoch: 1}
			b.do(routing.Disconnected{Worker: lost})
			r := b.request(agg, 10)
			r.MaxNew = 400
			if d, refusal, answered := b.arrive(r); answered {
				t.Fatalf("goes to %q, %+v", d.Decode.ID, refusal)
			}
			if d, _, _ := answerTo(r.ID, b.do(routing.Connected{Worker: lost})); d.Decode.ID != "d2" || d.ContextTokens != 512 {
				t.Errorf("goes to %q, of %d tokens", d.Decode.ID, d.ContextTokens)
			}
		})
	}
}

func TestBusyWorkerIsLeftAlone(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	r := b.request(agg, 10)
	b.arrive(r)
	busy := routing.Failure{Worker: routing.Ref{ID: "d1", Epoch: 1}, Busy: true, RetryAfter: 200 * time.Millisecond}
	b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{busy}})
	r.Attempt = 1
	if _, _, answered := b.arrive(r); answered {
		t.Error("sent at once to a worker that is full")
	}
	if _, _, answered := answerTo(r.ID, b.pass(250*time.Millisecond)); !answered {
		t.Error("not sent later")
	}
}

// Another failure does not shorten the time for which a worker wants to be left alone.
func TestBusyWorkerIsLeftAloneAsLongAsItAsks(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	first, second := b.request(agg, 10), b.request(agg, 10)
	b.arrive(first)
	b.arrive(second)
	b.do(routing.Ended{ID: first.ID, Failures: []routing.Failure{{Worker: d1, Busy: true, RetryAfter: 2 * time.Second}}})
	b.do(routing.Ended{ID: second.ID, Failures: []routing.Failure{{Worker: d1}}})
	r := b.request(agg, 10)
	b.arrive(r)
	if _, _, answered := answerTo(r.ID, b.pass(time.Second)); answered {
		t.Error("sent before the worker is to be asked again")
	}
	if _, _, answered := answerTo(r.ID, b.pass(1100*time.Millisecond)); !answered {
		t.Error("not sent later")
	}
}

// A request whose client has not read its answer counts against its tenant's limit
// after its end.
func TestUnreadAnswersCount(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.TenantMaxRequests = 1 }, decode("d1"))
	r := b.request(agg, 10)
	if d, _, _ := b.arrive(r); d.Decode.ID != "d1" {
		t.Fatalf("%v", d)
	}
	b.do(routing.Unread{Tenant: r.Tenant})
	b.do(routing.Ended{ID: r.ID})
	if _, refusal, _ := b.arrive(b.request(agg, 10)); refusal.Reason != api.ReasonTenantLimit {
		t.Errorf("while it is not read: %+v", refusal)
	}
	b.do(routing.Read{Tenant: r.Tenant})
	if d, _, _ := b.arrive(b.request(agg, 10)); d.Decode.ID != "d1" {
		t.Errorf("once it is read: %v", d)
	}
}

func TestPolicyChangesTheThreshold(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	b.do(routing.PolicyChanged{Policy: &controlv1.Policy{DisaggregateMinTokens: proto.Uint32(150), TenantMaxRequests: proto.Uint32(1)}})
	d, _, _ := b.arrive(b.request(auto, 100))
	if d.Prefill.ID != "" || !strings.Contains(d.Decision.GetReason(), "fewer than 150") {
		t.Errorf("%v", d)
	}
	if _, refusal, _ := b.arrive(b.request(auto, 100)); refusal.Reason != api.ReasonTenantLimit {
		t.Errorf("%+v", refusal)
	}
	b.do(routing.PolicyChanged{})
	if d, _, _ := b.arrive(b.request(auto, 100)); d.Prefill.ID != "p1" {
		t.Errorf("%v", d)
	}
}

// A request that fills a worker's blocks to the last position fits.
func TestExactFit(t *testing.T) {
	const all = 128 * 32 // positions on each worker
	for _, test := range []struct {
		name        string
		mode        inferencev1.Mode
		tokens, max int
		fits        bool
	}{
		{"decode full", agg, all - 99, 100, true},
		{"decode over", agg, all - 98, 100, false},
		{"prefill full", dis, all, 1, true},
		{"prefill over", dis, all + 1, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, prefill("p1"), decode("d1"))
			r := b.request(test.mode, test.tokens)
			r.MaxNew = test.max
			if _, refusal, _ := b.arrive(r); (refusal.Reason == "") != test.fits {
				t.Errorf("refusal %+v", refusal)
			}
		})
	}
}
