package routing_test

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// TestOverloadUsesAllWorkersAlike: once a request is refused for want of time, those like it are
// done by one worker each, if more of them are served that way, and for a while only.
func TestOverloadUsesAllWorkersAlike(t *testing.T) {
	p, d := aggregatedPrefill("p"), decode("d")
	for _, r := range []*controlv1.WorkerRecord{p, d} {
		r.KeepsTpot = true
		r.Capacity.Blocks, r.Capacity.MaxBatchTokens, r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 1000, 1024, 64, 64
	}
	b := newBench(t, func(c *routing.Config) { c.Router = "router-0" }, p, d)
	// Steps as in decision 0045: prompts of 256 tokens and answers of 64.
	report := func(prompts uint64) {
		for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
			b.do(load(id, role, func(r *controlv1.LoadReport) {
				r.BlocksFree, r.BlocksTotal, r.StepPromptTokens = 1000, 1000, 512
				r.StepTime = &controlv1.StepTimeModel{BaseMs: 5, PerTokenMs: .05, PerContextTokenMs: .0001, Samples: 1000, MostTokens: 512}
				if r.WaitingTokens = prompts; prompts > 0 {
					r.WaitingSequences = 1
				}
			}))
		}
	}
	ask := func() (routing.Dispatch, routing.Refusal) {
		r := b.request(auto, 256)
		r.MaxNew, r.TTFT, r.TPOT = 64, 180*time.Millisecond, 25*time.Millisecond
		got, refusal, answered := b.arrive(r)
		if !answered {
			t.Fatal("a request got no answer")
		}
		return got, refusal
	}
	report(0)
	if got, refusal := ask(); got.Prefill.ID != "p" {
		t.Fatalf("in no overload: %+v, %+v", got, refusal)
	}
	b.now = b.now.Add(time.Second)
	report(100_000)
	if _, refusal := ask(); refusal.Message == "" {
		t.Fatal("nothing is refused")
	}
	b.now = b.now.Add(100 * time.Millisecond)
	report(0)
	got, refusal := ask()
	if got.Prefill.ID != "" || !strings.Contains(got.Decision.GetReason(), "aggregated serving has more in time") {
		t.Fatalf("in overload: %+v, %+v", got, refusal)
	}
	b.now = b.now.Add(time.Minute)
	report(0)
	if got, refusal := ask(); got.Prefill.ID != "p" {
		t.Fatalf("after it: %+v, %+v", got, refusal)
	}
	// It is the same when another router has refused one, however long its word took.
	b.list(p, d, &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
	report(0)
	for n, ago := range []uint32{59_000, 61_000} {
		b.now = b.now.Add(time.Minute)
		report(0)
		b.do(routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: uint64(n + 1)}, RefusedMsAgo: ago}})
		if got, refusal := ask(); (got.Prefill.ID == "") != (ago < 60_000) {
			t.Errorf("%d ms after a refusal at another router: %+v, %+v", ago, got, refusal)
		}
	}
	// A router that is gone, or not believed, has refused nothing.
	for _, gone := range []bool{true, false} {
		b.list(p, d, &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 2})
		b.now = b.now.Add(time.Minute)
		report(0)
		said := func(sequence uint64) {
			b.do(routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: sequence}, RefusedMsAgo: 1}})
		}
		said(10)
		if gone {
			b.list(p, d)
		} else {
			said(5)
			said(11)
		}
		if got, refusal := ask(); got.Prefill.ID != "p" {
			t.Errorf("gone %v: %+v, %+v", gone, got, refusal)
		}
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
