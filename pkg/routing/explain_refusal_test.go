package routing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// refusalOf is the decision that refuses a request.
func refusalOf(t *testing.T, id string, actions []routing.Action) routing.Refuse {
	t.Helper()
	for _, action := range actions {
		if a, is := action.(routing.Refuse); is && a.ID == id {
			return a
		}
	}
	t.Fatalf("%s is not refused: %v", id, actions)
	return routing.Refuse{}
}

// A refusal says what the time would go to and who holds the worker, with the workers that were
// looked at, in less than 4 KB however many there are.
func TestRefusalsAreExplained(t *testing.T) {
	f, now := many(config(), 500)
	for i := range 500 {
		for id, role := range map[string]controlv1.Role{fmt.Sprint("p", i): controlv1.Role_ROLE_PREFILL, fmt.Sprint("d", i): controlv1.Role_ROLE_DECODE} {
			f.Handle(now, load(id, role, func(r *controlv1.LoadReport) { r.WaitingTokens = 5000 }))
		}
	}
	ask := func(id, tenant string, ttft time.Duration) []routing.Action {
		return f.Handle(now, routing.Arrived{Request: routing.Request{
			ID: id, Tenant: tenant, Model: "fable", Mode: dis, Arrived: now, Tokens: 99, MaxNew: 32, TTFT: ttft,
		}})
	}
	r := refusalOf(t, "late", ask("late", "t", 10*time.Millisecond))
	d := r.Decision
	if len(d.GetCandidates()) != 16 || len(d.GetOthers()) == 0 || d.GetTtftMs() < 10 || d.GetDecode() != "" || d.GetPrefill() != "" {
		t.Errorf("%v", d)
	}
	for _, want := range []string{"0.0 ms had passed", "to 0 requests that go first", "ms to what p", "to the prompt"} {
		if !strings.Contains(d.GetReason(), want) {
			t.Errorf("%q lacks %q", d.GetReason(), want)
		}
	}
	if n := proto.Size(d); n > 4<<10 {
		t.Errorf("it takes %d bytes", n)
	}
	if again := refusalOf(t, "again", ask("again", "t", 10*time.Millisecond)); again.Decision.GetReason() == "" {
		t.Errorf("%v", again)
	}
}

// A request that nobody can serve is refused with what speaks against each worker.
func TestRefusalForWantOfWorkers(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.NoWorkerGrace = 0 }, decode("d1"))
	d := decode("d1")
	d.State = controlv1.WorkerState_WORKER_STATE_DRAINING
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{d}, Live: true})
	r := b.request(agg, 100)
	actions := b.do(routing.Arrived{Request: r})
	got := refusalOf(t, r.ID, append(actions, b.pass(time.Second)...)).Decision
	if len(got.GetCandidates()) != 1 || got.GetCandidates()[0].GetExcluded() != "it drains" || !strings.Contains(got.GetReason(), "d1: it drains") {
		t.Errorf("%v", got)
	}
}

// Whoever waits is told in the end what for, and whose requests were there.
func TestWaitsAreExplained(t *testing.T) {
	report := func(free uint32) routing.LoadReported {
		return load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = free })
	}
	b := newBench(t, nil, decode("d1"))
	first := b.request(agg, 100)
	first.ID, first.Tenant = "first", "greedy"
	if d, _, answered := b.arrive(first); !answered || strings.Contains(d.Decision.GetReason(), "waited") {
		t.Fatalf("%v", d)
	}
	b.do(report(0))
	second := b.request(agg, 100)
	second.ID = "second"
	if _, _, answered := b.arrive(second); answered {
		t.Fatal("sent to a worker that is full")
	}
	b.pass(100 * time.Millisecond)
	d, _, _ := answerTo("second", b.do(report(50)))
	const want = `; it waited 100.0 ms at the router: d1: full: 5 blocks needed, 0 free (requests of this router there: 1, most of tenant "greedy": 1)`
	if !strings.HasSuffix(d.Decision.GetReason(), want) {
		t.Errorf("%q, want %q", d.Decision.GetReason(), want)
	}
	third := b.request(agg, 100)
	third.ID, third.TTFT = "third", 300*time.Millisecond
	b.do(report(0))
	actions := b.do(routing.Arrived{Request: third})
	for range 10 {
		actions = append(actions, b.pass(100*time.Millisecond)...)
		actions = append(actions, b.do(report(0))...)
	}
	if got := refusalOf(t, "third", actions).Decision; !strings.Contains(got.GetReason(), "it waited 300.0 ms at the router: d1: full") {
		t.Errorf("%v", got)
	}
}

// A refusal for the time of tokens says what they would take with others and alone.
func TestRefusalForTokens(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	r := b.request(agg, 100)
	r.TPOT = time.Microsecond
	if d := refusalOf(t, r.ID, b.do(routing.Arrived{Request: r})).Decision; !strings.HasPrefix(d.GetReason(), "a token would take ") || !strings.Contains(d.GetReason(), "on d1 with its other sequences, and ") {
		t.Errorf("%v", d)
	}
}
