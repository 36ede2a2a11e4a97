package routing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// several are routers of one mesh. What they tell arrives at once.
type several struct {
	now     time.Time
	routers []*routing.Router
	names   []string
	told    []uint64
	last    map[int]*controlv1.RouterReport // what each told last
	deaf    bool                            // what they tell is lost
	// dispatched are the requests of each router that were sent and have no task yet.
	dispatched [][]string
}

func newSeveral(n int, records ...*controlv1.WorkerRecord) *several {
	s := &several{now: time.Unix(1000, 0), told: make([]uint64, n), last: make(map[int]*controlv1.RouterReport), dispatched: make([][]string, n)}
	for i := range n {
		s.names = append(s.names, fmt.Sprint("router-", i))
		records = append(records, &controlv1.WorkerRecord{Id: s.names[i], Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
	}
	for i := range n {
		c := config()
		c.Router = s.names[i]
		s.routers = append(s.routers, routing.New(c, rand.New(rand.NewPCG(1, 2))))
	}
	s.all(routing.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		if r.GetRole() != controlv1.Role_ROLE_ROUTER {
			s.all(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}})
		}
	}
	return s
}

func (s *several) all(event routing.Event) {
	for i := range s.routers {
		s.do(i, event)
	}
}

func (s *several) do(router int, event routing.Event) {
	for _, action := range s.routers[router].Handle(s.now, event) {
		switch a := action.(type) {
		case routing.Dispatch:
			s.dispatched[router] = append(s.dispatched[router], a.ID)
		case routing.Tell:
			s.told[router]++
			report := proto.CloneOf(a.Report)
			s.last[router] = report
			report.Origin = &controlv1.Origin{Id: s.names[router], Epoch: 1, Sequence: s.told[router]}
			if !s.deaf {
				s.all(routing.RouterReported{Report: report})
			}
		}
	}
}

func (s *several) pass(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(time.Millisecond)
		for i, r := range s.routers {
			if next, ok := r.Next(); ok && !next.After(s.now) {
				s.do(i, routing.Tick{})
			}
		}
	}
}

func (s *several) arrive(router int, id string) {
	s.do(router, routing.Arrived{Request: routing.Request{ID: id, Tenant: "t", Model: "fable", Mode: agg, Arrived: s.now, Tokens: 100, MaxNew: 8}})
}

// large takes more than a few requests.
func large(id string) *controlv1.WorkerRecord {
	r := decode(id)
	r.Capacity.Blocks, r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 1<<16, 1<<10, 1<<10
	return r
}

// What one router sends, the others count until a load report does.
func TestRoutersKnowWhatOthersSent(t *testing.T) {
	s := newSeveral(2, large("d1"))
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	s.all(load("d1", controlv1.Role_ROLE_DECODE, nil))
	s.pass(10 * time.Millisecond)
	s.arrive(0, "a")
	if n, tokens := s.routers[1].Others(d1); n != 1 || tokens != 100 {
		t.Fatalf("%d requests of %d tokens", n, tokens)
	}
	if n, _ := s.routers[0].Others(d1); n != 0 {
		t.Fatalf("a router counts %d of its own as another's", n)
	}
	s.pass(time.Second)
	if n, _ := s.routers[1].Others(d1); n != 1 {
		t.Fatalf("%d requests after a second: they are told again", n)
	}
	s.do(0, routing.Queued{ID: "a", Role: controlv1.Role_ROLE_DECODE, Task: 1})
	s.all(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.Tasks, r.RunningSequences = 1, 1 }))
	if n, _ := s.routers[1].Others(d1); n != 0 {
		t.Fatalf("%d requests that the worker counts too", n)
	}
	s.pass(time.Second)
	if n, _ := s.routers[1].Others(d1); n != 0 || s.routers[1].KnownRouters(s.now) != 1 {
		t.Errorf("%d requests, %d peers", n, s.routers[1].KnownRouters(s.now))
	}
}

// Of more than a report tells, the next one tells what the last one did not.
func TestMoreThanAReportTells(t *testing.T) {
	ids := []string{"d1", "d2", "d3"}
	s := newSeveral(2, large(ids[0]), large(ids[1]), large(ids[2]))
	s.all(routing.PolicyChanged{Policy: &controlv1.Policy{Routing: proto.String("least-loaded")}})
	for _, id := range ids {
		s.all(load(id, controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree, r.BlocksTotal = 1<<16, 1<<16 }))
	}
	s.pass(10 * time.Millisecond)
	for i := range 3150 {
		s.do(0, routing.Arrived{Request: routing.Request{ID: fmt.Sprint(i), Tenant: fmt.Sprint(i), Model: "fable", Mode: agg, Arrived: s.now, Tokens: 1, MaxNew: 8}})
	}
	if n := len(s.dispatched[0]); n != 3150 {
		t.Fatalf("%d are sent", n)
	}
	most := make(map[string]int)
	for range 4 {
		s.pass(50 * time.Millisecond)
		for _, id := range ids {
			n, _ := s.routers[1].Others(routing.Ref{ID: id, Epoch: 1})
			most[id] = max(most[id], n)
		}
	}
	for _, id := range ids {
		if most[id] < 1000 {
			t.Errorf("of %s %d requests are known at most, of about 1,050", id, most[id])
		}
	}
}

// Whoever speaks for a router that speaks too is found out, and neither is believed.
func TestTwoSpeakForOneRouter(t *testing.T) {
	s := newSeveral(2, large("d1"))
	s.all(load("d1", controlv1.Role_ROLE_DECODE, nil))
	s.pass(2 * time.Second)
	forged := &controlv1.RouterReport{
		Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: s.told[1] + 1},
		Shares: []*controlv1.RouterShare{{WorkerId: "d1", Epoch: 1, Sent: []*controlv1.SentRequest{{PromptTokens: 1 << 30}}}},
	}
	s.do(0, routing.RouterReported{Report: forged})
	if n, _ := s.routers[0].Others(routing.Ref{ID: "d1", Epoch: 1}); n != 1 {
		t.Fatalf("%d requests", n)
	}
	s.pass(2 * time.Second)
	forged.Origin.Sequence = s.told[1] + 1
	s.do(0, routing.RouterReported{Report: forged})
	if n, _ := s.routers[0].Others(routing.Ref{ID: "d1", Epoch: 1}); n != 0 || s.routers[0].KnownRouters(s.now) != 0 {
		t.Errorf("%d requests of a router for which two speak", n)
	}
}

// Strangers, and routers that etcd does not list, are not heard.
func TestUnlistedRoutersAreNotHeard(t *testing.T) {
	s := newSeveral(2, large("d1"))
	for _, origin := range []*controlv1.Origin{nil, {}, {Id: "router-9", Epoch: 1, Sequence: 1}, {Id: "router-1", Epoch: 2, Sequence: 1}, {Id: "router-0", Epoch: 1, Sequence: 1}} {
		s.do(0, routing.RouterReported{Report: &controlv1.RouterReport{
			Origin: origin, Shares: []*controlv1.RouterShare{{WorkerId: "d1", Epoch: 1, Sent: []*controlv1.SentRequest{{}}}},
		}})
		if n, _ := s.routers[0].Others(routing.Ref{ID: "d1", Epoch: 1}); n != 0 {
			t.Errorf("%v is heard", origin)
		}
	}
}

// What waits at a router of another model waits for other workers.
func TestRoutersOfOtherModelsAreNotHeard(t *testing.T) {
	for _, c := range []struct {
		model, digest string
		sent          bool
	}{{"another", "a", true}, {"fable", "m", false}, {"the same by another name", "m", false}, {"", "", false}} {
		b := newBench(t, func(c *routing.Config) { c.Router = "router-0" }, large("d1"))
		b.list(large("d1"), &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1, Model: c.model, ModelDigest: c.digest})
		b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
		b.do(routing.RouterReported{Report: &controlv1.RouterReport{
			Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: 1}, Held: []*controlv1.HeldRequests{{Requests: 100, PromptMs: 60_000}},
		}})
		r := b.request(agg, 100)
		r.TTFT = time.Second
		if d, refusal, _ := b.arrive(r); (d.Decode.ID != "") != c.sent {
			t.Errorf("%q waits at another router: %+v, %+v", c.model, d, refusal)
		}
	}
}

// No request of another router is counted that the last load report counts, nothing is negative,
// and what is not said again ends.
func TestNothingIsCountedTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSeveral(3, large("d1"))
		d1 := routing.Ref{ID: "d1", Epoch: 1}
		tasks, counted, count := uint64(0), uint64(0), 0
		taken := make([]int, 3) // requests of each router that the next report counts
		router := rapid.IntRange(0, 2)
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				count++
				i := router.Draw(t, "router")
				s.arrive(i, fmt.Sprint("r", count))
			},
			"take": func(t *rapid.T) {
				i := router.Draw(t, "router")
				if len(s.dispatched[i]) > 0 {
					tasks++
					taken[i]++
					s.do(i, routing.Queued{ID: s.dispatched[i][0], Role: controlv1.Role_ROLE_DECODE, Task: tasks})
					s.dispatched[i] = s.dispatched[i][1:]
				}
			},
			"report": func(*rapid.T) {
				counted = tasks
				s.all(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.Tasks = counted }))
				clear(taken)
			},
			"lose": func(*rapid.T) { s.deaf = !s.deaf },
			"pass": func(t *rapid.T) {
				s.pass(time.Duration(rapid.IntRange(1, 60).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				for i := range s.routers {
					most := 0
					for j := range s.routers {
						if j != i {
							most += len(s.dispatched[j]) + taken[j]
						}
					}
					n, tokens := s.routers[i].Others(d1)
					if n < 0 || n > most || tokens != 100*n {
						t.Fatalf("router %d counts %d requests and %d tokens of others, which have %d", i, n, tokens, most)
					}
				}
			},
		})
		s.deaf = true
		s.pass(routing.ToldLasts + 100*time.Millisecond)
		s.all(routing.Tick{})
		for i, r := range s.routers {
			if n, _ := r.Others(d1); n != 0 {
				t.Fatalf("router %d still counts %d requests", i, n)
			}
		}
	})
}

// A decode worker's places are taken by requests whose KV is still to come, too. Whose they are does
// not matter: a router that has sent none of them goes by the report.
func TestReservedSequencesCountAtEachRouter(t *testing.T) {
	s := newSeveral(2, large("d1"), large("d2"))
	s.all(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.Tasks, r.RunningSequences, r.RunningContextTokens = 40, 4, 400
		r.DecodingSequences, r.DecodingContextTokens = 40, 4000
	}))
	s.all(load("d2", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.Tasks, r.RunningSequences, r.RunningContextTokens = 12, 12, 1200
		r.DecodingSequences, r.DecodingContextTokens = 12, 1200
	}))
	for i, r := range s.routers {
		for _, a := range r.Handle(s.now, routing.Arrived{Request: routing.Request{ID: fmt.Sprint("r", i), Tenant: "t", Model: "fable", Mode: agg, Arrived: s.now, Tokens: 100, MaxNew: 8}}) {
			if d, is := a.(routing.Dispatch); is && d.Decode.ID != "d2" {
				t.Errorf("router %d sends to %s", i, d.Decode.ID)
			}
		}
	}
}

// A request gets the place that another router's request had soon after that no longer counts.
func TestPlaceOfAnotherRouterIsTaken(t *testing.T) {
	for _, c := range []struct {
		name  string
		ends  func(*several)
		after time.Duration
	}{
		{"its router tells less", func(s *several) { s.do(0, routing.Ended{ID: "a"}) }, 60 * time.Millisecond},
		{"its router is not heard", func(s *several) { s.deaf = true }, routing.ToldLasts + 10*time.Millisecond},
		{"its router is not believed", func(s *several) {
			s.do(1, routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-0", Epoch: 1, Sequence: s.told[0]}}})
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d1 := decode("d1")
			d1.Capacity.MaxSequences, d1.Capacity.MaxWaiting = 1, 0
			s := newSeveral(2, d1)
			s.all(load("d1", controlv1.Role_ROLE_DECODE, nil))
			s.pass(10 * time.Millisecond)
			s.arrive(0, "a")
			s.arrive(1, "b")
			s.pass(10 * time.Millisecond)
			if len(s.dispatched[0]) != 1 || len(s.dispatched[1]) != 0 {
				t.Fatalf("%v are sent", s.dispatched)
			}
			c.ends(s)
			s.pass(c.after + 30*time.Millisecond)
			if len(s.dispatched[1]) != 1 {
				t.Error("it still waits")
			}
		})
	}
}

// A hedged attempt takes no room that a request at another router waits for.
func TestNoHedgedAttemptWhileOthersWait(t *testing.T) {
	for _, held := range []uint32{0, 1} {
		b := newHedgeBench(t, 0.1, 60)
		b.list(prefill("p1"), prefill("p2"), decode("d1"), decode("d2"), &controlv1.WorkerRecord{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
		r := b.request(dis, 100)
		d, _, _ := b.arrive(r)
		b.pass(d.HedgeAfter)
		report := &controlv1.RouterReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: 1}}
		if held > 0 {
			report.Held = []*controlv1.HeldRequests{{Requests: held, DueInMs: 1000, PromptMs: 10}}
		}
		b.do(routing.RouterReported{Report: report})
		hedge, refusal := b.hedge(r, d)
		if began := hedge.Decode.ID != ""; began != (held == 0) {
			t.Errorf("%d wait at another router: %+v, %+v", held, hedge, refusal)
		}
	}
}

// What waits at another router goes to the worker that is free first, whole; further ones go to other workers.
func TestTheNextElsewhereTakesTheFreeWorker(t *testing.T) {
	for _, c := range []struct {
		requests uint32
		ms       float64
		sent     bool
	}{{1, 10, true}, {1, 300, false}, {8, 300, true}} {
		ids := []string{"d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"}
		records := []*controlv1.WorkerRecord{{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1}}
		for _, id := range ids {
			records = append(records, large(id))
		}
		b := newBench(t, func(c *routing.Config) { c.Router = "router-0" }, records[1:]...)
		b.list(records...)
		for _, id := range ids {
			b.do(load(id, controlv1.Role_ROLE_DECODE, nil))
		}
		b.do(routing.RouterReported{Report: &controlv1.RouterReport{
			Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: 1}, Held: []*controlv1.HeldRequests{{Requests: c.requests, PromptMs: c.ms, DueInMs: 500}},
		}})
		r := b.request(agg, 100)
		r.TTFT = 2 * time.Second
		if d, refusal, _ := b.arrive(r); (d.Decode.ID != "") != c.sent {
			t.Errorf("%d of %g ms wait at another router: %+v, %+v", c.requests, c.ms, d, refusal)
		}
	}
}
