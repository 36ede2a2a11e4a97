package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// ids of workers and stores; the first letter is their role.
var ids = []string{"d1", "d2", "p1", "p2", "s1", "s2"}

func roleOf(id string) controlv1.Role {
	switch id[0] {
	case 'p':
		return controlv1.Role_ROLE_PREFILL
	case 's':
		return controlv1.Role_ROLE_KVTRANSFER
	}
	return controlv1.Role_ROLE_DECODE
}

// requestModel is what the test knows of one request.
type requestModel struct {
	request         routing.Request
	waiting         bool
	decode, prefill routing.Ref
	version         routing.Version
	ended           bool
	late            routing.Ref // of a hedged attempt: the worker that the first one waits for
}

// machine checks a router against what may happen at all.
type machine struct {
	f         *routing.Router
	now       time.Time
	records   map[string]*controlv1.WorkerRecord // in etcd
	live      bool
	wanted    map[routing.Ref]*controlv1.WorkerRecord // connections asked for
	connected map[routing.Ref]bool
	numbers   map[routing.Ref]uint64 // of their last connections
	met       map[string]bool        // ids of workers that have answered
	requests  map[string]*requestModel
	closed    map[[2]routing.Ref]time.Time // pairs that are left alone, until when
	count     int
	epoch     uint64
	reports   uint64

	connections uint64
}

func (m *machine) do(t *rapid.T, event routing.Event) {
	for _, action := range m.f.Handle(m.now, event) {
		switch a := action.(type) {
		case routing.Connect:
			if m.wanted[a.Worker] != nil {
				t.Fatalf("%v is connected to twice", a.Worker)
			}
			m.wanted[a.Worker] = a.Record
		case routing.Forget:
			if m.wanted[a.Worker] == nil {
				t.Fatalf("%v is forgotten twice", a.Worker)
			}
			delete(m.wanted, a.Worker)
			delete(m.connected, a.Worker)
		case routing.ListBlocks:
			if !m.connected[a.Worker] {
				t.Fatalf("%v is asked without a connection", a.Worker)
			}
		case routing.PathLost:
			if a.Wait < time.Second || a.Wait > 30*time.Second || a.Why == "" {
				t.Fatalf("lost %+v", a)
			}
			m.closed[[2]routing.Ref{a.Prefill, a.Decode}] = m.now.Add(a.Wait)
		case routing.Dispatch:
			m.dispatched(t, a)
		case routing.Refuse:
			r := m.requests[a.ID]
			if r == nil || !r.waiting {
				t.Fatalf("%s is refused and does not wait", a.ID)
			}
			r.waiting, r.ended = false, true
		}
	}
	at, due := m.f.Next()
	keys := m.f.BlockKeys("fable", routing.Version{})
	if anewAt, anewDue, anewKeys := m.f.Anew("fable", routing.Version{}); at != anewAt || due != anewDue || !slices.Equal(keys, anewKeys) {
		t.Fatalf("after %#v: next %v, %v, %v, and anew %v, %v, %v", event, at, due, keys, anewAt, anewDue, anewKeys)
	}
	if requests, adds := m.f.Expecting(); !adds || requests > m.f.Running() {
		t.Fatalf("after %#v: the prompts of %d requests are expected, %d run, adds up %v", event, requests, m.f.Running(), adds)
	}
	if m.f.Waiting() > 4 {
		// Retries pass the limit; this test has none.
		t.Fatalf("%d wait", m.f.Waiting())
	}
}

func (m *machine) dispatched(t *rapid.T, a routing.Dispatch) {
	r := m.requests[a.ID]
	if r == nil || !r.waiting {
		t.Fatalf("%s is dispatched and does not wait", a.ID)
	}
	if !r.request.Deadline.IsZero() && !m.now.Before(r.request.Deadline) {
		t.Fatalf("%s is dispatched after its deadline", a.ID)
	}
	r.waiting, r.decode, r.prefill, r.version = false, a.Decode, a.Prefill, a.Version
	if r.late != (routing.Ref{}) && (r.late == a.Decode || r.late == a.Prefill) {
		t.Fatalf("%s goes to %v, which the first try waits for", a.ID, r.late)
	}
	check := func(ref routing.Ref, role controlv1.Role) *controlv1.WorkerRecord {
		record := m.wanted[ref]
		switch {
		case record == nil || !m.connected[ref]:
			t.Fatalf("%s goes to %v, which is not connected", a.ID, ref)
		case record.GetRole() != role:
			t.Fatalf("%v has the wrong role", ref)
		case record.GetModelDigest() != "m":
			t.Fatalf("%v has another model", ref)
		}
		if now := m.records[ref.ID]; now != nil && now.GetEpoch() == ref.Epoch && now.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING {
			t.Fatalf("%v drains", ref)
		}
		unreached := 0
		for _, failure := range r.request.Failures {
			if failure.Unreached == a.Decode && failure.Worker == a.Prefill {
				unreached++
			}
			if unreached > 1 {
				t.Fatalf("%v did not reach %v in this request, twice", a.Prefill, a.Decode)
			}
			back := failure.Connection != 0 && failure.Connection != m.numbers[ref] && !failure.Leaves && !failure.Replaced
			if (failure.Gone && !back || failure.Verdict) && failure.Worker == ref {
				t.Fatalf("%v failed in this request", ref)
			}
		}
		n := 0
		for _, other := range m.requests {
			if !other.waiting && !other.ended && (other.decode == ref || other.prefill == ref) {
				n++
			}
		}
		if n > 3 {
			t.Fatalf("%d requests run on %v, which takes 3", n, ref)
		}
		return record
	}
	decodeRecord := check(a.Decode, controlv1.Role_ROLE_DECODE)
	aggregated := a.Prefill == routing.Ref{}
	if !aggregated {
		if p := check(a.Prefill, controlv1.Role_ROLE_PREFILL); p.GetLayoutDigest() != decodeRecord.GetLayoutDigest() {
			t.Fatalf("layouts of %v and %v differ", a.Prefill, a.Decode)
		}
		if m.now.Before(m.closed[[2]routing.Ref{a.Prefill, a.Decode}]) {
			t.Fatalf("%v and %v are paired too early", a.Prefill, a.Decode)
		}
	}
	if r.request.Mode == dis && aggregated || r.request.Mode == agg && !aggregated {
		t.Fatalf("%s asked for %v and got %v", a.ID, r.request.Mode, a.Decision)
	}
	c := config()
	flags := c.Silence()
	for _, s := range []routing.Silence{a.DecodeSilence, a.PrefillSilence} {
		if !aggregated || s != (routing.Silence{}) {
			for _, limit := range [][2]time.Duration{{s.Queue, flags.Queue}, {s.Prompt, flags.Prompt}, {s.Tokens, flags.Tokens}} {
				if limit[0] < 2*time.Second || limit[0] > limit[1] {
					t.Fatalf("may be silent for %+v", s)
				}
			}
		}
	}
	for _, c := range a.Decision.GetCandidates() {
		if !m.met[c.GetWorkerId()] {
			t.Fatalf("%s looked at %s, which never answered", a.ID, c.GetWorkerId())
		}
	}
	m.hinted(t, a)
	if a.Decision.GetReason() == "" || a.Decision.GetDecode() != a.Decode.ID || a.Decision.GetPrefill() != a.Prefill.ID {
		t.Fatalf("decision %v", a.Decision)
	}
}

// hinted checks that a hint names a store that is there and fits the worker that it
// is for.
func (m *machine) hinted(t *rapid.T, a routing.Dispatch) {
	if a.Source == nil {
		return
	}
	ref := routing.Ref{ID: a.Source.GetWorkerId(), Epoch: a.Source.GetEpoch()}
	s, p := m.wanted[ref], m.wanted[a.Prefill]
	switch {
	case s == nil || !m.connected[ref]:
		t.Fatalf("%s is told of %v, which is not connected", a.ID, ref)
	case s.GetRole() != controlv1.Role_ROLE_KVTRANSFER:
		t.Fatalf("%s is told of %v, which is no store", a.ID, ref)
	case p == nil || p.GetLayoutDigest() != s.GetLayoutDigest():
		t.Fatalf("layouts of %v and %v differ", a.Prefill, ref)
	case a.Source.GetBlocks() == 0 || a.Decision.GetSource() != ref.ID || a.Decision.GetSourceBlocks() != a.Source.GetBlocks():
		t.Fatalf("hint %v, decision %v", a.Source, a.Decision)
	}
}

// number is that of a load report: mostly the next.
func (m *machine) number(t *rapid.T) uint64 {
	if m.reports++; rapid.IntRange(0, 9).Draw(t, "forged") > 0 {
		return m.reports
	}
	return rapid.SampledFrom([]uint64{0, 1, m.reports - 1, m.reports + 300, 1 << 60}).Draw(t, "number")
}

func (m *machine) ref(t *rapid.T) (routing.Ref, bool) {
	var refs []routing.Ref
	for _, id := range ids {
		for epoch := uint64(1); epoch <= m.epoch; epoch++ {
			if m.wanted[routing.Ref{ID: id, Epoch: epoch}] != nil {
				refs = append(refs, routing.Ref{ID: id, Epoch: epoch})
			}
		}
	}
	if len(refs) == 0 {
		return routing.Ref{}, false
	}
	return rapid.SampledFrom(refs).Draw(t, "worker"), true
}

// connect lets a worker answer on a new connection.
func (m *machine) connect(t *rapid.T, ref routing.Ref) {
	m.connections++
	m.connected[ref], m.numbers[ref], m.met[ref.ID] = true, m.connections, true
	m.do(t, routing.Connected{Worker: ref, Connection: m.connections})
}

func (m *machine) view(t *rapid.T) {
	view := routing.ViewChanged{Live: m.live}
	for _, id := range ids {
		if r := m.records[id]; r != nil {
			view.Workers = append(view.Workers, r)
		}
	}
	m.do(t, view)
}

func (m *machine) pick(t *rapid.T, match func(*requestModel) bool) *requestModel {
	var found []*requestModel
	for i := 1; i <= m.count; i++ {
		if r := m.requests[fmt.Sprint("r", i)]; match(r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return rapid.SampledFrom(found).Draw(t, "request")
}

// Every request that arrives is answered once; workers chosen are alive, fit
// and have room; at the end nothing is left.
func TestRouterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config()
		c.Policy = rapid.SampledFrom(routing.Policies()).Draw(t, "policy")
		c.HedgeShare = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "hedge share")
		m := &machine{
			f: routing.New(c, rand.New(rand.NewPCG(1, 2))), now: time.Unix(1000, 0), live: true,
			records: map[string]*controlv1.WorkerRecord{}, wanted: map[routing.Ref]*controlv1.WorkerRecord{},
			connected: map[routing.Ref]bool{}, numbers: map[routing.Ref]uint64{}, met: map[string]bool{}, requests: map[string]*requestModel{}, closed: map[[2]routing.Ref]time.Time{},
		}
		if rapid.Bool().Draw(t, "populated") {
			for _, id := range ids {
				m.epoch++
				m.records[id] = record(id, roleOf(id))
				m.records[id].Epoch = m.epoch
			}
			m.view(t)
			for _, id := range ids {
				m.connect(t, routing.Ref{ID: id, Epoch: m.records[id].GetEpoch()})
			}
		}
		running := func(r *requestModel) bool { return !r.waiting && !r.ended }
		waiting := func(r *requestModel) bool { return r.waiting }
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				r := record(id, roleOf(id))
				r.LayoutDigest = rapid.SampledFrom([]uint64{7, 7, 7, 8}).Draw(t, "layout")
				r.ModelDigest = rapid.SampledFrom([]string{"m", "m", "m", "other"}).Draw(t, "model")
				if old := m.records[id]; old != nil && rapid.Bool().Draw(t, "same") {
					r = proto.CloneOf(old)
					r.State = rapid.SampledFrom([]controlv1.WorkerState{1, 2}).Draw(t, "state")
				} else {
					m.epoch++ // one that was never there before
					r.Epoch = m.epoch
				}
				m.records[id] = r
				m.view(t)
			},
			"leave": func(t *rapid.T) {
				delete(m.records, rapid.SampledFrom(ids).Draw(t, "id"))
				m.view(t)
			},
			"etcd": func(t *rapid.T) {
				m.live = !m.live
				m.view(t)
			},
			"connect": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					m.connect(t, ref)
				}
			},
			"unmet": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok && !m.connected[ref] {
					m.do(t, routing.ConnectFailed{Worker: ref, Why: "nobody is there"})
				}
			},
			"disconnect": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					delete(m.connected, ref)
					m.do(t, routing.Disconnected{Worker: ref})
				}
			},
			"load": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					report := &controlv1.LoadReport{
						Origin:           &controlv1.Origin{Id: ref.ID, Epoch: ref.Epoch, Sequence: m.number(t)},
						WaitingTokens:    rapid.Uint64Range(0, 5000).Draw(t, "tokens"),
						RunningSequences: rapid.Uint32Range(0, 4).Draw(t, "running"),
						BlocksFree:       rapid.Uint32Range(0, 128).Draw(t, "free"),
						StepTime:         &controlv1.StepTimeModel{BaseMs: 1, PerTokenMs: .1, Samples: 1},
					}
					if rapid.IntRange(0, 3).Draw(t, "honest") == 0 {
						deface(t, report.ProtoReflect())
					}
					m.do(t, routing.LoadReported{Report: report})
				}
			},
			"blocks": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					m.do(t, routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{
						Epoch: ref.Epoch, Sequence: uint64(m.now.UnixNano()), BlockHashes: sequence(rapid.Uint64Range(0, 6).Draw(t, "blocks")),
					}})
				}
			},
			"fetched": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					m.do(t, routing.Fetched{
						Store: ref, Worker: ref, Verdict: workerv1.FetchVerdict(rapid.Int32Range(0, 4).Draw(t, "verdict")),
						Tokens: rapid.IntRange(0, 1<<31).Draw(t, "tokens"), Took: time.Duration(rapid.Int64Min(0).Draw(t, "took")),
					})
				}
			},
			"arrive": func(t *rapid.T) {
				m.count++
				r := routing.Request{
					ID: fmt.Sprint("r", m.count), Tenant: "t", Model: "fable", Arrived: m.now,
					Mode:   rapid.SampledFrom([]inferencev1.Mode{auto, dis, agg}).Draw(t, "mode"),
					Tokens: rapid.IntRange(1, 200).Draw(t, "tokens"), MaxNew: rapid.IntRange(1, 100).Draw(t, "max"),
					Priority: rapid.Int32Range(-1, 1).Draw(t, "priority"),
					Hashes:   numbered(m.f),
				}
				if rapid.Bool().Draw(t, "deadline") {
					r.Deadline = m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
				}
				if ref, ok := m.ref(t); ok && rapid.Bool().Draw(t, "failed") {
					failure := routing.Failure{Worker: ref, Gone: rapid.Bool().Draw(t, "gone"), Verdict: rapid.Bool().Draw(t, "verdict")}
					if failure.Gone {
						failure.Leaves = rapid.IntRange(0, 3).Draw(t, "leaves") == 0
						failure.Connection = rapid.SampledFrom([]uint64{0, 1, m.numbers[ref]}).Draw(t, "connection")
					}
					if to, ok := m.ref(t); ok && !failure.Gone && ref.ID[0] == 'p' && to.ID[0] == 'd' {
						failure.Unreached, failure.Why = to, "no way"
					}
					r.Failures = slices.Repeat([]routing.Failure{failure}, rapid.IntRange(1, 2).Draw(t, "times"))
				}
				m.requests[r.ID] = &requestModel{request: r, waiting: true}
				m.do(t, routing.Arrived{Request: r})
			},
			"hedge": func(t *rapid.T) {
				first := m.pick(t, running)
				if first == nil {
					return
				}
				m.count++
				r := first.request
				r.ID, r.Attempt, r.Version = fmt.Sprint("r", m.count), 1, first.version
				late := first.decode
				if first.prefill != (routing.Ref{}) && rapid.Bool().Draw(t, "prefill is late") {
					late = first.prefill
				}
				second := &requestModel{request: r, waiting: true, late: late}
				m.requests[r.ID] = second
				m.do(t, routing.Hedge{Request: r, Late: late, After: time.Second})
				if second.waiting {
					t.Fatal("a hedged attempt waits")
				}
			},
			"taken": func(t *rapid.T) {
				if r := m.pick(t, running); r != nil {
					m.do(t, routing.Taken{ID: r.request.ID, Role: rapid.SampledFrom([]controlv1.Role{controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE}).Draw(t, "role")})
				}
			},
			"computed": func(t *rapid.T) {
				if r := m.pick(t, running); r != nil {
					delete(m.closed, [2]routing.Ref{r.prefill, r.decode})
					m.do(t, routing.PromptDone{ID: r.request.ID})
				}
			},
			"sent": func(t *rapid.T) {
				if r := m.pick(t, running); r != nil {
					m.do(t, routing.Sent{ID: r.request.ID, Bytes: rapid.Uint64().Draw(t, "bytes"), Busy: time.Duration(rapid.Int64().Draw(t, "busy"))})
				}
			},
			"end": func(t *rapid.T) {
				if r := m.pick(t, running); r != nil {
					r.ended = true
					e := routing.Ended{ID: r.request.ID}
					switch how := rapid.IntRange(0, 5).Draw(t, "how"); {
					case how == 0 && r.prefill != (routing.Ref{}):
						e.Failures = []routing.Failure{{Worker: r.prefill, Unreached: r.decode, Why: "no way"}}
						if pair := [2]routing.Ref{r.prefill, r.decode}; m.closed[pair].IsZero() {
							m.closed[pair] = m.now.Add(100 * time.Millisecond)
						}
					case how <= 1:
						e.Failures = []routing.Failure{{Worker: r.decode, Busy: true}}
					case how == 2:
						e.Failures = []routing.Failure{{Worker: r.decode, Silent: true, Gone: rapid.Bool().Draw(t, "gone")}}
					case how == 3:
						e.Failures = []routing.Failure{{Worker: r.decode, Verdict: true}}
					case how == 4:
						e.Served = true
					}
					e.Lost = len(e.Failures) == 0 && !e.Served && rapid.Bool().Draw(t, "lost")
					m.do(t, e)
				}
			},
			"tokens received": func(t *rapid.T) {
				if r := m.pick(t, running); r != nil {
					m.do(t, routing.TokensReceived{ID: r.request.ID, Gaps: gapsOf(rapid.IntRange(0, 200).Draw(t, "gaps"), time.Duration(rapid.Int64Min(0).Draw(t, "gap")))})
				}
			},
			"contradicted": func(t *rapid.T) {
				if ref, ok := m.ref(t); ok {
					m.do(t, routing.Contradicted{Worker: ref, Began: m.now, Why: "no"})
				}
			},
			"cancel": func(t *rapid.T) {
				if r := m.pick(t, waiting); r != nil {
					r.waiting, r.ended = false, true
					m.do(t, routing.Cancelled{ID: r.request.ID})
				}
			},
			"time": func(t *rapid.T) {
				if next, ok := m.f.Next(); ok && rapid.Bool().Draw(t, "due") {
					if next.After(m.now) {
						m.now = next
					}
				} else {
					m.now = m.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
				}
				m.do(t, routing.Tick{})
			},
		})
		// Nobody waits for longer than allowed, whatever the workers do.
		for range 10_000 {
			next, ok := m.f.Next()
			if !ok || m.f.Waiting() == 0 {
				break
			}
			if next.After(m.now) {
				m.now = next
			}
			m.do(t, routing.Tick{})
		}
		for id, r := range m.requests {
			if r.waiting {
				t.Fatalf("%s waits for ever", id)
			}
			if !r.ended {
				r.ended = true
				m.do(t, routing.Ended{ID: id})
			}
		}
		if m.f.Waiting() != 0 || m.f.Running() != 0 {
			t.Fatalf("%d wait and %d run at the end", m.f.Waiting(), m.f.Running())
		}
		for _, v := range m.f.Workers(m.now) {
			if v.GetInFlight() != 0 {
				t.Fatalf("%d requests are left on %s", v.GetInFlight(), v.GetRecord().GetId())
			}
		}
	})
}
