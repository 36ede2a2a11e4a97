package routing_test

import (
	"math"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// bothPools is a bench of a prefill worker p that takes aggregated requests, too, and a decode worker d, with steps as in
// decision 0045. report has both say how many tokens of prompts wait there.
func bothPools(t *testing.T, change func(*routing.Config)) (p, d *controlv1.WorkerRecord, b *bench, report func(waiting uint64)) {
	p, d = aggregatedPrefill("p"), decode("d")
	for _, r := range []*controlv1.WorkerRecord{p, d} {
		r.KeepsTpot = true
		r.Capacity.Blocks, r.Capacity.MaxBatchTokens, r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 1000, 1024, 64, 64
	}
	b = newBench(t, change, p, d)
	return p, d, b, func(waiting uint64) {
		for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
			b.do(load(id, role, func(r *controlv1.LoadReport) {
				r.BlocksFree, r.BlocksTotal, r.StepPromptTokens = 1000, 1000, 512
				r.StepTime = &controlv1.StepTimeModel{BaseMs: 5, PerTokenMs: .05, PerContextTokenMs: .0001, Samples: 1000, MostTokens: 512}
				if r.WaitingTokens = waiting; waiting > 0 {
					r.WaitingSequences = 1
				}
			}))
		}
	}
}

// TestOverloadUsesAllWorkersAlike: while requests are refused for want of time, and many are late, all use the pools in
// one way, and for a while only.
func TestOverloadUsesAllWorkersAlike(t *testing.T) {
	p, d, b, report := bothPools(t, func(c *routing.Config) { c.Router = "router-0" })
	ask := func() (routing.Dispatch, routing.Refusal) {
		r := b.request(auto, 256)
		r.MaxNew, r.TTFT, r.TPOT = 64, 180*time.Millisecond, 25*time.Millisecond
		got, refusal, answered := b.arrive(r)
		if !answered {
			t.Fatal("a request got no answer")
		}
		return got, refusal
	}
	// About as many come as the workers serve, each after the other, and one of ten is late.
	many := func() {
		for n := range 200 {
			b.now = b.now.Add(time.Second / 100)
			report(0)
			r := b.request(auto, 256)
			r.MaxNew, r.TTFT, r.TPOT = 64, 180*time.Millisecond, 25*time.Millisecond
			b.arrive(r)
			if n%10 == 9 {
				b.now = b.now.Add(200 * time.Millisecond)
			}
			b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 64})
		}
	}
	report(0)
	if got, refusal := ask(); got.Prefill.ID != "p" {
		t.Fatalf("in no overload: %+v, %+v", got, refusal)
	}
	many()
	report(100_000)
	for range 10 { // more than a few
		if _, refusal := ask(); refusal.Message == "" {
			t.Fatal("nothing is refused")
		}
	}
	b.now = b.now.Add(time.Second)
	report(0)
	imposed := func(d routing.Dispatch) bool { return strings.Contains(d.Decision.GetReason(), "gregated at present") }
	got, refusal := ask()
	if !imposed(got) {
		t.Fatalf("in overload: %+v, %+v", got, refusal)
	}
	b.now = b.now.Add(time.Minute)
	report(0)
	if got, refusal := ask(); got.Decode.ID == "" || imposed(got) {
		t.Fatalf("after it: %+v, %+v", got, refusal)
	}
	// It is overload, too, when another router has refused one, however long its word took.
	b.list(p, d, &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
	for n, ago := range []uint32{59_000, 61_000} {
		b.now = b.now.Add(time.Minute)
		b.do(routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: uint64(n + 1)}, RefusedMsAgo: ago}})
		if b.f.Overloaded() != (ago < 60_000) {
			t.Errorf("%d ms after a refusal at another router: %v", ago, b.f.Overloaded())
		}
	}
	// A router that is gone, or not believed, has refused nothing.
	for _, gone := range []bool{true, false} {
		b.list(p, d, &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 2})
		b.now = b.now.Add(time.Minute)
		said := func(sequence uint64) {
			b.do(routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: sequence}, RefusedMsAgo: 1}})
		}
		if said(10); !b.f.Overloaded() {
			t.Error("no overload")
		}
		if gone {
			b.list(p, d)
		} else {
			said(5)
			said(11)
		}
		if b.f.Overloaded() {
			t.Errorf("gone %v: overload", gone)
		}
	}
}

// What becomes of a request counts for the use of the pools under which it came: in time, late or refused, and what says
// nothing does not.
func TestOutcomesOfRequests(t *testing.T) {
	const ttft, tpot = 180 * time.Millisecond, 25 * time.Millisecond
	type outcome struct{ came, inTime float64 }
	none := outcome{}
	for _, c := range []struct {
		name    string
		change  func(*routing.Request)
		first   time.Duration // until its first token; 0: it has none
		then    time.Duration // until it ends
		ended   routing.Ended
		waiting uint64 // tokens that wait at the workers, so that it is refused
		want    outcome
	}{
		{"in time", nil, ttft, 99 * tpot, routing.Ended{Served: true, Tokens: 100}, 0, outcome{1, 1}},
		{"a late first token", nil, ttft + time.Millisecond, 0, routing.Ended{Served: true, Tokens: 100}, 0, outcome{1, 0}},
		{"late tokens", nil, ttft, 100 * tpot, routing.Ended{Served: true, Tokens: 100}, 0, outcome{1, 0}},
		{"late tokens of a class", func(r *routing.Request) { r.TTFT, r.TPOT, r.Class = 0, 0, routing.ClassInteractive }, ttft, 1000 * tpot, routing.Ended{Served: true, Tokens: 100}, 0, outcome{1, 0}},
		{"no objective of its own", func(r *routing.Request) { r.TTFT, r.TPOT = 0, 0 }, time.Hour, 0, routing.Ended{Served: true, Tokens: 100}, 0, none},
		{"another mode", func(r *routing.Request) { r.Mode = dis }, ttft, 0, routing.Ended{Served: true, Tokens: 100}, 0, none},
		{"given up soon", nil, 0, ttft / 2, routing.Ended{}, 0, none},
		{"given up after its first token was due", nil, 0, 2 * ttft, routing.Ended{}, 0, outcome{1, 0}},
		{"refused", nil, 0, 0, routing.Ended{}, 100_000, outcome{1, 0}},
		{"late in any case", func(r *routing.Request) { r.Tokens, r.TTFT = 3000, time.Millisecond }, 0, 0, routing.Ended{}, 0, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, b, report := bothPools(t, func(config *routing.Config) {
				config.Classes = routing.Classes{routing.ClassInteractive: {TTFT: ttft, TPOT: tpot}}
			})
			report(0)
			before := b.request(auto, 256) // so that something is known of what comes
			before.MaxNew, before.Mode = 100, dis
			b.arrive(before)
			b.do(routing.Ended{ID: before.ID, Served: true, Tokens: 100})
			b.now = b.now.Add(2 * time.Second)
			report(0)
			warm := b.request(auto, 256)
			warm.MaxNew = 100
			b.arrive(warm)
			b.do(routing.Ended{ID: warm.ID, Served: true, Tokens: 100})
			b.now = b.now.Add(2 * time.Second)
			report(c.waiting)
			r := b.request(auto, 256)
			r.MaxNew, r.TTFT, r.TPOT = 100, ttft, tpot
			if c.change != nil {
				c.change(&r)
			}
			_, _, answered := b.arrive(r)
			if !answered {
				t.Fatal("no answer")
			}
			if c.first > 0 {
				b.now = b.now.Add(c.first)
				b.do(routing.PromptDone{ID: r.ID})
			}
			b.now = b.now.Add(c.then)
			c.ended.ID = r.ID
			b.do(c.ended)
			if came, inTime := b.f.Outcomes("fable"); math.Abs(came-c.want.came) > 0.01 || math.Abs(inTime-c.want.inTime) > 0.01 {
				t.Errorf("%.2f came and %.2f were in time, want %+v", came, inTime, c.want)
			}
		})
	}
}

// TestRefusalsAreTold: a router tells the others when it refused a request for want of time, and not
// what they told it.
func TestRefusalsAreTold(t *testing.T) {
	s := newSeveral(2, large("d1"))
	s.all(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.WaitingSequences, r.WaitingTokens = 1, 100_000 }))
	s.pass(10 * time.Millisecond)
	s.do(0, routing.Arrived{Request: routing.Request{ID: "late", Tenant: "t", Model: "fable", Mode: agg, Arrived: s.now, Tokens: 100, MaxNew: 8, TTFT: 20 * time.Millisecond}})
	s.pass(2 * time.Second)
	if ago := s.last[0].GetRefusedMsAgo(); ago == 0 || ago > 3000 {
		t.Errorf("the router that refused tells of %d ms ago", ago)
	}
	if ago := s.last[1].GetRefusedMsAgo(); ago != 0 {
		t.Errorf("the other one tells of %d ms ago", ago)
	}
}

// TestALongPromptHidesItsTransfer: the time that KV takes does not count as far as it is sent while its own
// prompt is computed, however short other prompts are.
func TestALongPromptHidesItsTransfer(t *testing.T) {
	p, d := prefill("p1"), decode("d1")
	for _, r := range []*controlv1.WorkerRecord{p, d} {
		r.Capacity.Blocks, r.Capacity.MaxSequences = 1000, 64
	}
	b := newBench(t, nil, p, d)
	report := func() {
		for id, role := range map[string]controlv1.Role{"p1": controlv1.Role_ROLE_PREFILL, "d1": controlv1.Role_ROLE_DECODE} {
			b.do(load(id, role, func(r *controlv1.LoadReport) { r.BlocksFree, r.BlocksTotal = 1000, 1000 }))
		}
	}
	for range 64 {
		report()
		r := b.request(dis, 150)
		if got, refusal, _ := b.arrive(r); got.Prefill.ID != "p1" {
			t.Fatalf("%+v, %+v", got, refusal)
		}
		b.now = b.now.Add(20 * time.Millisecond)
		b.do(routing.PromptDone{ID: r.ID})
		b.do(routing.Sent{ID: r.ID, Bytes: 1 << 20, Busy: 1 << 20 / 600 * time.Millisecond})
		b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 1})
	}
	report()
	long := b.request(dis, 8000) // computed in 863 ms, sent in 853
	long.MaxNew, long.TPOT = 16, 40*time.Millisecond
	got, refusal, _ := b.arrive(long)
	if got.Prefill.ID != "p1" || got.Decision.GetTpotMs() > 2 {
		t.Errorf("a token is predicted to take %v ms: %+v", got.Decision.GetTpotMs(), refusal)
	}
}
