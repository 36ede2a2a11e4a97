package routing_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// one is a router with one decode worker, which runs so many requests.
func one(sequences uint32) (*routing.Router, time.Time) {
	c := config()
	c.QueueLimit, c.TenantMaxRequests = 1000, 1000
	f, now := routing.New(c, rand.New(rand.NewPCG(1, 2))), time.Unix(1000, 0)
	worker := decode("d1")
	worker.Capacity.MaxSequences, worker.Capacity.MaxWaiting = sequences, 1
	f.Handle(now, routing.ViewChanged{Workers: []*controlv1.WorkerRecord{worker}, Live: true})
	f.Handle(now, routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
	return f, now
}

// Between two tenants that both have requests waiting, what one is served more than the other over
// any number of decisions is at most the largest request of each.
func TestTenantsGetEqualShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, now := one(2)
		tenants := rapid.IntRange(2, 4).Draw(t, "tenants")
		largest := make([]int, tenants)
		sizes, of := map[string]int{}, map[string]int{}
		served := make([]int, tenants)
		type gap struct{ least, most int }
		gaps := map[[2]int]*gap{}
		for a := range tenants {
			for b := range a {
				gaps[[2]int{a, b}] = &gap{}
			}
		}
		number := 0
		var running []string
		full := false // all have requests waiting
		handle := func(event routing.Event) {
			for _, action := range f.Handle(now, event) {
				d, is := action.(routing.Dispatch)
				if !is {
					continue
				}
				running = append(running, d.ID)
				if full {
					served[of[d.ID]] += sizes[d.ID]
					for pair, g := range gaps {
						ahead := served[pair[0]] - served[pair[1]]
						g.least, g.most = min(g.least, ahead), max(g.most, ahead)
					}
				}
			}
		}
		add := func(tenant int) {
			number++
			id := fmt.Sprint("r", number)
			sizes[id], of[id] = rapid.IntRange(1, 1000).Draw(t, "tokens"), tenant
			largest[tenant] = max(largest[tenant], sizes[id])
			handle(routing.Arrived{Request: routing.Request{
				ID: id, Tenant: fmt.Sprint("t", tenant), Model: "fable", Mode: agg, Arrived: now, Tokens: sizes[id], MaxNew: 2,
			}})
		}
		for i := range 4 * tenants {
			add(i % tenants)
		}
		full = true
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now = now.Add(time.Millisecond)
			id := running[0]
			running = running[1:]
			add(of[id]) // so that nobody ever has none waiting
			handle(routing.Ended{ID: id})
		}
		for pair, g := range gaps {
			if bound := largest[pair[0]] + largest[pair[1]]; g.most-g.least > bound {
				t.Fatalf("tenant %d was served up to %d tokens more than tenant %d over some decisions, at most %d is fair", pair[0], g.most-g.least, pair[1], bound)
			}
		}
	})
}

// A request that waits for much KV lets smaller ones pass, and goes before they have passed for
// long, however many more come.
func TestLargeRequestsWaitAndAreNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, now := one(100)
		var running []string
		gone := false
		handle := func(event routing.Event) {
			for _, action := range f.Handle(now, event) {
				if d, is := action.(routing.Dispatch); is {
					running = append(running, d.ID)
					gone = gone || d.ID == "large"
				}
			}
		}
		arrive := func(id string, tokens int) {
			handle(routing.Arrived{Request: routing.Request{ID: id, Tenant: "t", Model: "fable", Mode: agg, Arrived: now, Tokens: tokens, MaxNew: 1}})
		}
		for i := range 6 { // the worker holds 4096 tokens
			arrive(fmt.Sprint("first ", i), 500)
		}
		arrive("large", rapid.IntRange(2000, 4000).Draw(t, "large"))
		for i := 0; !gone; i++ {
			now = now.Add(time.Millisecond)
			before := len(running)
			size := rapid.IntRange(300, 600).Draw(t, "small")
			arrive(fmt.Sprint("small ", i), size)
			if i == 0 && len(running) == before {
				t.Fatalf("one of %d tokens waits behind the large one", size)
			}
			handle(routing.Ended{ID: running[0]})
			running = running[1:]
			if len(running) == 0 || i > 100 {
				t.Fatalf("%d run, and the large one waits after %d steps", len(running), i)
			}
		}
	})
}

// What waits goes by class, then by its tenant's share, then by the time when its first token is
// due; and not before the worker has little left to do.
func TestOrderOfThoseThatWait(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.QueueLimit = 10 }, decode("d1"))
	busy := func(tokens uint64) []routing.Action {
		return b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.WaitingTokens = tokens }))
	}
	busy(5000)
	ask := func(id, class string, ttft time.Duration) {
		r := b.request(agg, 100)
		r.ID, r.Class, r.TTFT = id, class, ttft
		if _, refusal, answered := b.arrive(r); answered {
			t.Fatalf("%s was not kept: %+v", id, refusal)
		}
	}
	ask("batch", routing.ClassBatch, 0)
	ask("late", routing.ClassStandard, 20*time.Second)
	ask("early", routing.ClassStandard, 10*time.Second)
	ask("interactive", routing.ClassInteractive, 30*time.Second)
	var order []string
	var took func(actions []routing.Action)
	took = func(actions []routing.Action) {
		first := len(order)
		for _, action := range actions {
			if d, is := action.(routing.Dispatch); is {
				order = append(order, d.ID)
			}
		}
		for _, id := range order[first:len(order):len(order)] {
			took(b.do(routing.Ended{ID: id}))
		}
	}
	b.now = b.now.Add(25 * time.Millisecond)
	took(busy(0))
	if got, want := fmt.Sprint(order), "[interactive early late batch]"; got != want {
		t.Errorf("they went as %v, want %v", got, want)
	}
}

// What is said of the queue tells classes of one priority apart, the first to go first. A request that
// names no class is of the default one.
func TestQueuedByClass(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.QueueLimit, c.DefaultClass = 10, routing.ClassStandard }, decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.WaitingTokens = 5000 }))
	for _, class := range []string{routing.ClassBatch, routing.ClassStandard, "", routing.ClassInteractive} {
		r := b.request(agg, 100)
		r.Class = class
		if _, refusal, answered := b.arrive(r); answered {
			t.Fatalf("%q was not kept: %+v", class, refusal)
		}
	}
	var got []string
	for _, d := range b.f.Queued(b.now)["fable"] {
		got = append(got, fmt.Sprintf("%s %d", d.GetClass(), d.GetRequests()))
	}
	if want := "interactive 1, standard 2, batch 1"; strings.Join(got, ", ") != want {
		t.Errorf("queued %q, want %q", got, want)
	}
}

// Where no more may wait, those of a lower class give way, and those of a tenant that has many.
func TestWhoGivesWay(t *testing.T) {
	for _, test := range []struct {
		name          string
		class, tenant string
		out           string // who is refused; the newcomer is "new"
		again         string // waits for another try
	}{
		{"a higher class", routing.ClassInteractive, "a", "a3", ""},
		{"the same class and tenant", routing.ClassStandard, "a", "new", ""},
		{"another tenant", routing.ClassStandard, "c", "a3", ""},
		{"a tenant that has one less", routing.ClassStandard, "b", "a3", ""},
		{"a lower class", routing.ClassBatch, "c", "new", ""},
		{"those that were let in stay", routing.ClassInteractive, "a", "a3", "a"},
		{"all of the longest line were let in", routing.ClassInteractive, "a", "a3", "dddd"},
		{"they were let in, and are fewer", routing.ClassStandard, "b", "a3", "dddd"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1")) // four may wait
			b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 0 }))
			ask := func(id, class, tenant string) {
				r := b.request(agg, 100)
				r.ID, r.Class, r.Tenant = id, class, tenant
				if strings.HasPrefix(id, "again") {
					r.Attempt = 1
				}
				b.arrive(r)
			}
			for _, id := range []string{"a1", "b1", "a2", "a3"} {
				ask(id, routing.ClassStandard, id[:1])
			}
			for i, tenant := range test.again {
				ask(fmt.Sprint("again", i), routing.ClassStandard, string(tenant))
			}
			ask("new", test.class, test.tenant)
			var out []string
			for _, action := range b.last {
				if r, is := action.(routing.Refuse); is {
					out = append(out, r.ID)
				}
			}
			if len(out) != 1 || out[0] != test.out || b.f.Waiting() != 4+len(test.again) {
				t.Errorf("%v were refused and %d wait, want %s", out, b.f.Waiting(), test.out)
			}
		})
	}
}

// Where all of the lowest level were let in before, one of the next gives way to who is above that.
func TestHigherLevelGivesWay(t *testing.T) {
	b := newBench(t, nil, decode("d1")) // four may wait
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 0 }))
	for i, class := range []string{routing.ClassBatch, routing.ClassStandard, routing.ClassStandard, routing.ClassStandard} {
		r := b.request(agg, 100)
		r.Class = class
		if i == 0 {
			r.Attempt = 1
		}
		b.arrive(r)
	}
	for _, c := range []struct{ class, out string }{{routing.ClassInteractive, "r4"}, {routing.ClassStandard, "r6"}} {
		r := b.request(agg, 100)
		r.Class = c.class
		b.arrive(r)
		if _, refusal, refused := answerTo(c.out, b.last); !refused || refusal.Reason != api.ReasonQueueFull || b.f.Waiting() != 4 {
			t.Errorf("%s comes, and %v", c.class, b.last)
		}
	}
}

// What waits of very many tenants is looked at in little time.
func BenchmarkManyTenantsWait(b *testing.B) {
	f, now := one(2)
	for i := range 1000 {
		f.Handle(now, routing.Arrived{Request: routing.Request{ID: fmt.Sprint("r", i), Tenant: fmt.Sprint("t", i), Model: "fable", Mode: agg, Arrived: now, Tokens: 100, MaxNew: 2}})
	}
	for b.Loop() {
		f.Handle(now, routing.Ended{ID: "none"})
	}
}
