package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A worker that takes twice as long as it should is found out, and its promises are held
// against that; one that is right again is believed again.
func TestPredictionsAreCorrected(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	b.do(load("p1", controlv1.Role_ROLE_PREFILL, nil))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	serve := func(times int) (predicted time.Duration) {
		r := b.request(dis, 100)
		d, _, _ := b.arrive(r)
		predicted = time.Duration(d.Decision.GetTtftMs() * float64(time.Millisecond))
		b.pass(time.Duration(times) * predicted)
		b.do(routing.PromptDone{ID: r.ID})
		b.do(routing.Ended{ID: r.ID, Served: true})
		return predicted
	}
	predicted := serve(1)
	within := func(ttft time.Duration) bool {
		r := b.request(dis, 100)
		r.TTFT = ttft
		d, refusal, _ := b.arrive(r)
		if d.Decode.ID != "" {
			b.do(routing.PromptDone{ID: r.ID})
			b.do(routing.Ended{ID: r.ID})
			return true
		}
		if refusal.Reason != api.ReasonSLOUnattainable {
			t.Fatalf("%+v", refusal)
		}
		return false
	}
	if !within(predicted * 3 / 2) {
		t.Error("refused though it would be in time")
	}
	for range 30 {
		serve(2)
	}
	if within(predicted * 3 / 2) {
		t.Error("taken though it would be late")
	}
	if p := b.f.Predictions()[1]; p.Worker != "p1" || p.FirstToken.Bias < 0.2 || p.FirstToken.Mean < p.FirstToken.Bias {
		t.Errorf("%+v", p)
	}
	for range 200 {
		serve(1)
	}
	if !within(predicted * 3 / 2) {
		t.Error("refused though it would be in time again")
	}
}

// A worker that others were on when a prompt took longer than predicted is not predicted by that when it
// has nothing to do: it would get nothing, and nothing better would be learned of it.
func TestDoubtOfWaitsKeepsNoWorkerIdle(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	report := func(waiting uint64) {
		b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) {
			r.WaitingTokens, r.WaitingSequences = waiting, min(uint32(waiting), 1)
		}))
	}
	predicted := func(d routing.Dispatch) time.Duration {
		return time.Duration(d.Decision.GetTtftMs() * float64(time.Millisecond))
	}
	for range 30 {
		report(100)
		r := b.request(dis, 100)
		d, _, _ := b.arrive(r)
		b.pass(3 * predicted(d))
		b.do(routing.PromptDone{ID: r.ID})
		b.do(routing.Ended{ID: r.ID, Served: true})
	}
	for _, c := range []struct {
		waiting uint64
		taken   bool
	}{{100, false}, {0, true}} {
		report(c.waiting)
		r := b.request(dis, 100)
		d, _, _ := b.arrive(r)
		b.do(routing.Ended{ID: r.ID})
		limited := b.request(dis, 100)
		limited.TTFT = predicted(d) * 3 / 2
		if got, refusal, _ := b.arrive(limited); (got.Decode.ID != "") != c.taken {
			t.Errorf("with %d tokens there: %+v, %+v", c.waiting, got, refusal)
		}
		b.do(routing.Ended{ID: limited.ID})
	}
}

// What was sent counts until a report counts it, however long that takes, and not twice.
func TestTasksAreCountedOnce(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	report := func(tasks, tokens uint64) {
		b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.Tasks, r.WaitingTokens = tasks, tokens }))
	}
	queueMs := func() float64 {
		r := b.request(dis, 100)
		d, _, _ := b.arrive(r)
		b.do(routing.Ended{ID: r.ID})
		for _, c := range d.Decision.GetCandidates() {
			if c.GetWorkerId() == "p1" {
				return c.GetQueueMs()
			}
		}
		t.Fatal("p1 was not considered")
		return 0
	}
	report(4, 0)
	if ms := queueMs(); ms != 0 {
		t.Fatalf("idle: %v ms", ms)
	}
	r := b.request(dis, 100)
	b.arrive(r)
	sent := queueMs()
	if sent == 0 {
		t.Fatal("what was sent does not count")
	}
	b.pass(2 * time.Second)
	report(4, 0) // it has not come there: its transfer is not open
	if ms := queueMs(); ms != sent {
		t.Errorf("after a report without it: %v ms, want %v", ms, sent)
	}
	b.do(routing.Queued{ID: r.ID, Role: controlv1.Role_ROLE_PREFILL, Task: 5})
	report(5, 100)
	if ms := queueMs(); ms != sent {
		t.Errorf("after a report with it: %v ms, want %v", ms, sent)
	}
	b.do(routing.PromptDone{ID: r.ID})
	report(5, 0)
	if ms := queueMs(); ms != 0 {
		t.Errorf("when it is computed: %v ms", ms)
	}
}

// A router that refuses requests for what it learned of a worker tries again after a while, also if
// others keep the worker as busy as it was.
func TestCorrectionsThatRefuseAreForgotten(t *testing.T) {
	b := newBench(t, nil, large("d1"))
	report := func() {
		b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.RunningSequences, r.DecodingSequences = 4, 4 }))
	}
	report()
	r := b.request(agg, 100)
	r.MaxNew = 101
	d, _, _ := b.arrive(r)
	predicted := time.Duration(d.Decision.GetTpotMs() * float64(time.Millisecond))
	b.do(routing.Ended{ID: r.ID})
	for range 30 {
		r := b.request(agg, 100)
		r.MaxNew = 101
		b.arrive(r)
		b.do(routing.PromptDone{ID: r.ID})
		b.pass(200 * predicted)
		report()
		b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 101, Decoding: 200 * predicted})
	}
	taken := func() bool {
		report()
		r := b.request(agg, 100)
		r.MaxNew, r.TPOT = 101, predicted*3/2
		d, refusal, _ := b.arrive(r)
		if d.Decode.ID != "" {
			b.do(routing.Ended{ID: r.ID})
			return true
		}
		if refusal.Reason != api.ReasonSLOUnattainable {
			t.Fatalf("%+v", refusal)
		}
		return false
	}
	if taken() {
		t.Error("taken though tokens take twice as long as predicted")
	}
	b.pass(time.Second)
	if taken() {
		t.Error("forgotten after a second")
	}
	b.pass(20 * time.Second)
	if !taken() {
		t.Error("still refused after 20 s without a request")
	}
}

// So is the margin of requests that wait: one that would be refused for it is let in after a while.
func TestMarginOfThoseThatWaitIsForgotten(t *testing.T) {
	b := newBench(t, nil, large("d1"))
	busy := func(decoding uint32) {
		b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
			r.RunningSequences, r.DecodingSequences, r.WaitingTokens, r.StepPromptTokens = decoding, decoding, 5000, 512
			r.BlocksFree, r.BlocksTotal = 1<<16, 1<<16
		}))
	}
	ask := func(tpot time.Duration) (r routing.Request, refused bool) {
		r = b.request(agg, 100)
		r.TPOT = tpot
		d, refusal, answered := b.arrive(r)
		if d.Decode.ID != "" || answered && refusal.Reason != api.ReasonSLOUnattainable {
			t.Fatalf("%+v, %+v", d, refusal)
		}
		return r, answered
	}
	for range 40 { // each is let in, and misses its objective by its turn
		busy(4)
		r, refused := ask(10 * time.Millisecond)
		busy(200)
		if _, refusal, answered := answerTo(r.ID, b.pass(10*time.Millisecond)); refused || !answered || refusal.Reason != api.ReasonSLOUnattainable {
			t.Fatalf("refused at once: %v, later: %+v", refused, refusal)
		}
	}
	behindAnother := func() (refused bool) {
		busy(4)
		first, _ := ask(0)
		r, refused := ask(3200 * time.Microsecond) // it is predicted to be 1.5 ms
		b.do(routing.Cancelled{ID: first.ID})
		b.do(routing.Cancelled{ID: r.ID})
		return refused
	}
	if !behindAnother() {
		t.Error("let in though all others missed it")
	}
	b.now = b.now.Add(time.Minute)
	if behindAnother() {
		t.Error("still refused after a minute without a request")
	}
}
