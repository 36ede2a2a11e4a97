package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// What the router promises those that wait, whatever comes:
//
//	equal shares       TestTenantsGetEqualShares, TestSharesOfTenantsThatComeAndGo
//	no starvation      TestLargeRequestsWaitAndAreNotStarved, TestNobodyIsStarved, TestArbitraryReportsStarveNobody
//	feasible: served   TestFeasibleRequestsAreServed, TestFeasibleObjectivesAreServed, TestRouterModel (of limits)
//	the prefix index   TestIndexFollowsThroughLosses; TestIndexAgainstModel of pkg/kvcache

// served is a router whose requests run for as long as a test lets them.
type served struct {
	f       *routing.Router
	now     time.Time
	running []string
	sent    func(routing.Dispatch)
	refused func(routing.Refuse)
}

func newServed(change func(*routing.Config), records ...*controlv1.WorkerRecord) *served {
	c := config()
	c.QueueLimit, c.TenantMaxRequests = 10_000, 10_000
	if change != nil {
		change(&c)
	}
	s := &served{f: routing.New(c, rand.New(rand.NewPCG(1, 2))), now: time.Unix(1000, 0)}
	s.do(routing.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		s.do(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: r.GetEpoch()}})
	}
	return s
}

func (s *served) do(event routing.Event) {
	for _, action := range s.f.Handle(s.now, event) {
		switch a := action.(type) {
		case routing.Dispatch:
			s.running = append(s.running, a.ID)
			if s.sent != nil {
				s.sent(a)
			}
		case routing.Refuse:
			if s.refused != nil {
				s.refused(a)
			}
		}
	}
}

// pass lets time go by.
func (s *served) pass(d time.Duration) {
	for end := s.now.Add(d); ; {
		next, due := s.f.Next()
		if !due || next.After(end) {
			s.now = end
			return
		}
		if next.After(s.now) {
			s.now = next
		}
		s.do(routing.Tick{})
	}
}

// end ends one that runs, after so many tokens.
func (s *served) end(at, tokens int) {
	id := s.running[at]
	s.running = slices.Delete(s.running, at, at+1)
	s.do(routing.PromptDone{ID: id})
	s.do(routing.Ended{ID: id, Served: true, Tokens: tokens, Decoding: time.Second})
}

// sized is a decode worker that runs so many sequences.
func sized(id string, sequences uint32) *controlv1.WorkerRecord {
	r := decode(id)
	r.Capacity.MaxSequences, r.Capacity.MaxWaiting, r.Capacity.Blocks = sequences, 1, 1<<16
	return r
}

// Over any number of decisions through which two tenants have requests waiting, what one is served
// more than the other, answers too, is at most the largest prompt of each, the answers that ran at
// a time, and what may pass a prompt that has no place; however others, or the two before, come and
// go, give up, and how much the workers do.
func TestSharesOfTenantsThatComeAndGo(t *testing.T) {
	const most, mostAnswer, passes = 1000, 500, 4
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 3).Draw(t, "workers")
		var records []*controlv1.WorkerRecord
		places := 0
		for i := range workers {
			n := rapid.IntRange(1, 3).Draw(t, "sequences")
			places += n + 1
			records = append(records, sized(fmt.Sprint("d", i), uint32(n)))
		}
		s := newServed(nil, records...)
		const tenants = 4
		type window struct{ ahead, least, most int }
		var windows [tenants][tenants]window
		waiting, size, of := [tenants]map[string]bool{}, map[string]int{}, map[string]int{}
		for i := range waiting {
			waiting[i] = map[string]bool{}
		}
		charge := func(tenant, tokens int) {
			for other := range tenants {
				for _, pair := range [...]struct {
					w   *window
					now int
				}{{&windows[tenant][other], tokens}, {&windows[other][tenant], -tokens}} {
					if len(waiting[tenant]) == 0 || len(waiting[other]) == 0 {
						continue
					}
					pair.w.ahead += pair.now
					pair.w.least, pair.w.most = min(pair.w.least, pair.w.ahead), max(pair.w.most, pair.w.ahead)
				}
			}
		}
		left := func(tenant int) {
			if len(waiting[tenant]) == 0 { // its windows are over
				for other := range tenants {
					windows[tenant][other], windows[other][tenant] = window{}, window{}
				}
			}
		}
		s.sent = func(d routing.Dispatch) {
			tenant := of[d.ID]
			charge(tenant, size[d.ID])
			delete(waiting[tenant], d.ID)
			left(tenant)
		}
		s.refused = func(r routing.Refuse) { t.Fatalf("%+v", r) }
		number := 0
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				tenant := rapid.IntRange(0, tenants-1).Draw(t, "tenant")
				for range rapid.IntRange(1, 8).Draw(t, "requests") {
					number++
					id := fmt.Sprint("r", number)
					size[id], of[id] = rapid.IntRange(1, most).Draw(t, "tokens"), tenant
					waiting[tenant][id] = true
					s.do(routing.Arrived{Request: routing.Request{
						ID: id, Tenant: fmt.Sprint("t", tenant), Model: "fable", Mode: agg, Arrived: s.now, Tokens: size[id], MaxNew: 2,
					}})
				}
			},
			"end": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "requests") {
					if len(s.running) == 0 {
						return
					}
					at, tokens := rapid.IntRange(0, len(s.running)-1).Draw(t, "which"), rapid.IntRange(0, mostAnswer).Draw(t, "answer")
					charge(of[s.running[at]], tokens)
					s.end(at, tokens)
				}
			},
			"give up": func(t *rapid.T) {
				tenant := rapid.IntRange(0, tenants-1).Draw(t, "tenant")
				for id := range waiting[tenant] {
					s.do(routing.Cancelled{ID: id})
					delete(waiting[tenant], id)
					left(tenant)
					return
				}
			},
			"load": func(t *rapid.T) {
				i := rapid.IntRange(0, workers-1).Draw(t, "worker")
				s.do(load(fmt.Sprint("d", i), controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.BlocksFree = 1 << 16
					r.WaitingTokens = rapid.Uint64Range(0, 3000).Draw(t, "waiting")
				}))
			},
			"time": func(t *rapid.T) { s.pass(time.Duration(rapid.IntRange(1, 200).Draw(t, "ms")) * time.Millisecond) },
			"": func(t *rapid.T) {
				for a := range tenants {
					for b := range a {
						if w := windows[a][b]; w.most-w.least > 2*(most+places*mostAnswer)+passes*most {
							t.Fatalf("tenant %d was served %d tokens more than tenant %d over some decisions", a, w.most-w.least, b)
						}
					}
				}
			},
		})
	})
}

// Whoever waits goes before long, however much of whatever else comes: of its tenant and others,
// larger and smaller, in its mode and others.
func TestNobodyIsStarved(t *testing.T) {
	modes := []inferencev1.Mode{agg, dis, auto}
	mixes := [][]inferencev1.Mode{modes, {agg}, {dis}, {auto}}
	rapid.Check(t, func(t *rapid.T) {
		s := newServed(nil, aggregatedPrefill("p1"), decode("d1")) // each holds 4096 tokens
		mix, most := rapid.SampledFrom(mixes).Draw(t, "modes"), rapid.SampledFrom([]int{400, 1500}).Draw(t, "most tokens")
		gone := false
		s.sent = func(d routing.Dispatch) { gone = gone || d.ID == "one" }
		s.refused = func(r routing.Refuse) { t.Fatalf("%+v", r) }
		arrive := func(id, tenant string, mode inferencev1.Mode, tokens int) {
			s.do(routing.Arrived{Request: routing.Request{ID: id, Tenant: tenant, Model: "fable", Mode: mode, Arrived: s.now, Tokens: tokens, MaxNew: 1}})
		}
		number := 0
		others := func(n int) {
			for range n {
				number++
				arrive(fmt.Sprint("other ", number), rapid.SampledFrom([]string{"t", "u", "v"}).Draw(t, "tenant"), rapid.SampledFrom(mix).Draw(t, "mode"), rapid.IntRange(300, most).Draw(t, "tokens"))
			}
		}
		others(20)
		arrive("one", "t", rapid.SampledFrom(modes).Draw(t, "mode of the one"), rapid.IntRange(1, 4000).Draw(t, "tokens of the one"))
		for i := 0; !gone; i++ {
			s.pass(time.Millisecond)
			if len(s.running) > 0 {
				s.end(0, 1)
			}
			others(1)
			if i > 200 {
				t.Fatalf("it waits after %d others have ended", i)
			}
		}
	})
}

// A request without an objective that the workers there can hold is served, whatever others come,
// go, drain and report beside them.
func TestFeasibleRequestsAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := []*controlv1.WorkerRecord{aggregatedPrefill("p1"), decode("d1"), aggregatedPrefill("p2"), decode("d2")}
		s := newServed(nil, records...)
		s.refused = func(r routing.Refuse) { t.Fatalf("%+v", r) }
		number := 0
		other := func(t *rapid.T) *controlv1.WorkerRecord {
			return rapid.SampledFrom(records[2:]).Draw(t, "worker")
		}
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				number++
				s.do(routing.Arrived{Request: routing.Request{
					ID: fmt.Sprint("r", number), Tenant: "t", Model: "fable", Mode: rapid.SampledFrom([]inferencev1.Mode{auto, agg, dis}).Draw(t, "mode"),
					Arrived: s.now, Tokens: rapid.IntRange(1, 4000).Draw(t, "tokens"), MaxNew: 32,
				}})
			},
			"end": func(t *rapid.T) {
				if n := len(s.running); n > 0 {
					s.end(rapid.IntRange(0, n-1).Draw(t, "which"), 32)
				}
			},
			"disconnect": func(t *rapid.T) { s.do(routing.Disconnected{Worker: routing.Ref{ID: other(t).GetId(), Epoch: 1}}) },
			"connect":    func(t *rapid.T) { s.do(routing.Connected{Worker: routing.Ref{ID: other(t).GetId(), Epoch: 1}}) },
			"leave":      func(t *rapid.T) { s.do(routing.Leaving{Worker: routing.Ref{ID: other(t).GetId(), Epoch: 1}}) },
			"load": func(t *rapid.T) {
				w := other(t)
				s.do(load(w.GetId(), w.GetRole(), func(r *controlv1.LoadReport) {
					r.BlocksFree, r.WaitingTokens = rapid.Uint32Range(0, 128).Draw(t, "free"), rapid.Uint64Range(0, 10_000).Draw(t, "waiting")
				}))
			},
			"time": func(t *rapid.T) { s.pass(time.Duration(rapid.IntRange(1, 50).Draw(t, "ms")) * time.Millisecond) },
		})
		for i := 0; s.f.Waiting() > 0; i++ {
			s.pass(10 * time.Millisecond)
			if len(s.running) > 0 {
				s.end(0, 32)
			}
			if i > 1000 {
				t.Fatalf("%d wait, and %d run", s.f.Waiting(), len(s.running))
			}
		}
	})
}

// A request is not refused for an objective of several times what it takes on workers that have
// nothing to do.
func TestFeasibleObjectivesAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newServed(nil, aggregatedPrefill("p1"), decode("d1"))
		baseMs, tokenMs := rapid.Float64Range(0.1, 20).Draw(t, "base"), rapid.Float64Range(0.001, 1).Draw(t, "token")
		for id, role := range map[string]controlv1.Role{"p1": controlv1.Role_ROLE_PREFILL, "d1": controlv1.Role_ROLE_DECODE} {
			s.do(load(id, role, func(r *controlv1.LoadReport) { r.StepTime.BaseMs, r.StepTime.PerTokenMs = baseMs, tokenMs }))
		}
		tokens := rapid.IntRange(1, 4000).Draw(t, "tokens")
		aloneMs := float64(tokens/128+1)*baseMs + float64(tokens)*tokenMs // 128 tokens of a prompt in a step
		s.refused = func(r routing.Refuse) { t.Fatalf("%+v", r) }
		s.do(routing.Arrived{Request: routing.Request{
			ID: "r", Tenant: "t", Model: "fable", Mode: rapid.SampledFrom([]inferencev1.Mode{auto, agg, dis}).Draw(t, "mode"), Arrived: s.now, Tokens: tokens, MaxNew: 32,
			TTFT: time.Duration((4*aloneMs + 50) * float64(time.Millisecond)), TPOT: time.Duration((4*(baseMs+tokenMs) + 1) * float64(time.Millisecond)),
		}})
		if len(s.running) != 1 {
			t.Fatal("it waits, though nobody else is there")
		}
	})
}

// A tenant that has as many requests waiting as can be in time keeps nobody else out: what comes of
// another tenant waits for no more than its turn, and is refused for no more than that.
func TestFloodOfOneTenantKeepsNobodyOut(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.QueueLimit, c.TenantMaxRequests = 1000, 1000 }, large("d1"))
	report := func() []routing.Action {
		return b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree, r.BlocksTotal = 1<<16, 1<<16 }))
	}
	report()
	var running []string
	ask := func(tenant string) (sent bool, refusal routing.Refusal) {
		r := b.request(agg, 1000)
		r.ID, r.Tenant, r.Class, r.TTFT = tenant+r.ID, tenant, routing.ClassStandard, 10*time.Second
		d, refusal, _ := b.arrive(r)
		if d.ID != "" {
			running = append(running, d.ID)
		}
		return d.ID != "", refusal
	}
	for {
		if _, refusal := ask("flood"); refusal.Reason == api.ReasonSLOUnattainable {
			break
		} else if refusal.Reason != "" || b.count > 500 {
			t.Fatalf("after %d: %+v", b.count, refusal)
		}
	}
	waiting := b.f.Waiting()
	if sent, refusal := ask("other"); sent || refusal.Reason != "" || waiting < 20 {
		t.Fatalf("with %d waiting, another tenant's is sent: %v, or refused: %+v", waiting, sent, refusal)
	}
	b.now = b.now.Add(time.Second)
	var next string
	for _, id := range running {
		for _, action := range slices.Concat(b.do(routing.PromptDone{ID: id}), b.do(routing.Ended{ID: id}), report()) {
			if d, is := action.(routing.Dispatch); is && next == "" {
				next = d.ID
			}
		}
	}
	if !strings.HasPrefix(next, "other") {
		t.Errorf("next goes %s", next)
	}
}

// Who comes to a level has its share of that at once, however much others were served of a higher one.
func TestSharesOfALevelAreItsOwn(t *testing.T) {
	s := newServed(nil, sized("d1", 1))
	var sent []string
	s.sent = func(d routing.Dispatch) { sent = append(sent, d.ID) }
	arrive := func(tenant, class string, tokens int) {
		for i := range 12 {
			s.do(routing.Arrived{Request: routing.Request{
				ID: fmt.Sprint(tenant, i), Tenant: tenant, Class: class, Model: "fable", Mode: agg, Arrived: s.now, Tokens: tokens, MaxNew: 2,
			}})
		}
	}
	arrive("B", routing.ClassBatch, 100)
	arrive("H", routing.ClassInteractive, 100_000)
	for range 12 {
		s.end(0, 0)
	}
	arrive("C", routing.ClassBatch, 100)
	before, others := len(sent), 0
	for range 10 {
		s.end(0, 0)
	}
	for _, id := range sent[before:] {
		if id[0] == 'C' {
			others++
		}
	}
	if others < 4 || others > 6 {
		t.Errorf("of %v, %d are of the tenant that came last", sent[before:], others)
	}
}

// A tenant that sends one request after the other pays for each of them, though for a moment it has
// none.
func TestNobodyOwesLessForAMoment(t *testing.T) {
	one := sized("d1", 1)
	one.Capacity.MaxWaiting = 0
	s := newServed(nil, one)
	size, served := map[byte]int{'A': 10_000, 'B': 100}, map[byte]int{}
	s.sent = func(d routing.Dispatch) { served[d.ID[0]] += size[d.ID[0]] }
	number := 0
	arrive := func(tenant byte) {
		number++
		s.do(routing.Arrived{Request: routing.Request{
			ID: fmt.Sprint(string(tenant), number), Tenant: string(tenant), Model: "fable", Mode: agg, Arrived: s.now, Tokens: size[tenant], MaxNew: 2,
		}})
	}
	arrive('A')
	for range 20 {
		arrive('B')
	}
	for range 1000 {
		tenant := s.running[0][0]
		s.end(0, 0)
		arrive(tenant)
	}
	if share := float64(served['A']) / float64(served['A']+served['B']); share < 0.4 || share > 0.6 {
		t.Errorf("it has %.2f of the tokens: %v", share, served)
	}
}

// A debt is to those that wait: once nobody does, it is over, though others run on.
func TestDebtsEndOnceNobodyWaits(t *testing.T) {
	two := sized("d1", 2)
	two.Capacity.MaxWaiting = 0
	s := newServed(nil, two)
	var sent []string
	s.sent = func(d routing.Dispatch) { sent = append(sent, d.ID) }
	arrive := func(id, tenant string, tokens int) {
		s.do(routing.Arrived{Request: routing.Request{
			ID: id, Tenant: tenant, Model: "fable", Mode: agg, Arrived: s.now, Tokens: tokens, MaxNew: 2,
		}})
	}
	arrive("always", "always", 100)
	arrive("large", "A", 10_000)
	arrive("waits", "B", 100)
	s.end(1, 0) // A owes B
	s.end(1, 0)
	for i := range 50 {
		id := fmt.Sprint("once ", i)
		arrive(id, id, 100)
		s.end(1, 0)
	}
	before := len(sent)
	if before != 53 || s.f.Waiting() > 0 {
		t.Fatalf("%d wait after %v", s.f.Waiting(), sent)
	}
	for i := range 10 {
		arrive(fmt.Sprint("C", i), "C", 100)
		arrive(fmt.Sprint("A", i), "A", 100)
	}
	for len(sent) < before+10 {
		s.end(1, 0)
	}
	of := 0
	for _, id := range sent[before:] {
		if id[0] == 'A' {
			of++
		}
	}
	if of < 4 || of > 6 {
		t.Errorf("of %v, %d are of who owed something once", sent[before:], of)
	}
}

// A tenant that sends more long prompts than can be in time gets others' short ones refused no more than
// without it: what is let in of its own ones says nothing of theirs.
func TestLongPromptsOfOneTenantKeepNobodyOut(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.QueueLimit, c.TenantMaxRequests = 1000, 1000 }, large("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree, r.BlocksTotal = 1<<16, 1<<16 }))
	ask := func(tenant string, tokens int) routing.Refusal {
		r := b.request(agg, tokens)
		r.Tenant, r.TTFT = tenant, time.Second
		_, refusal, _ := b.arrive(r)
		return refusal
	}
	refused := map[int]int{}
	for range 200 {
		for _, tokens := range []int{100, 100, 100, 6000} { // 10 ms and 600 ms
			if ask("flood", tokens).Reason != "" {
				refused[tokens]++
			}
		}
	}
	if refused[6000] < 190 || refused[100] < 500 {
		t.Fatalf("refused: %v", refused)
	}
	if refusal := ask("other", 100); refusal.Reason != "" {
		t.Errorf("another tenant's is refused: %+v", refusal)
	}
}

// Long prompts that are refused for the time of a token have no short ones refused for their first token.
func TestTokensInTimeAreNoMatterOfLength(t *testing.T) {
	b := newBench(t, nil, large("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	b.arrive(b.request(agg, 100)) // it runs all the time: what is known of a level goes with its last request
	for i := range 400 {
		r := b.request(agg, 100)
		r.TTFT, r.TPOT = time.Second, time.Second
		waiting, long := uint64(7000), i%4 == 3
		if long {
			r.Tokens, r.TPOT, waiting = 4000, time.Millisecond, 5000
		}
		b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
			r.BlocksFree, r.BlocksTotal, r.WaitingTokens, r.WaitingSequences = 1<<16, 1<<16, waiting, 1
		}))
		d, refusal, answered := b.arrive(r)
		if (refusal.Reason != "") != long {
			t.Fatalf("request %d of %d tokens: %+v", i, r.Tokens, refusal)
		}
		if !answered {
			b.do(routing.Cancelled{ID: r.ID})
		} else if d.ID != "" {
			b.do(routing.PromptDone{ID: d.ID})
			b.do(routing.Ended{ID: d.ID})
		}
		b.now = b.now.Add(100 * time.Millisecond)
	}
}
