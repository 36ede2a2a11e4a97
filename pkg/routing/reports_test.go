package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// full is a report that there is no room.
func full(id string) routing.LoadReported {
	return load(id, roleOf(id), func(r *controlv1.LoadReport) { r.BlocksFree = 0 })
}

// waitFor lets time pass with a report each 50 ms, until the request is sent.
func (b *bench) waitFor(id string, report func() routing.LoadReported, most time.Duration) (routing.Dispatch, time.Duration) {
	b.t.Helper()
	for began := b.now; b.now.Sub(began) < most; {
		if d, _, answered := answerTo(id, b.do(report())); answered {
			return d, b.now.Sub(began)
		}
		if d, _, answered := answerTo(id, b.pass(50*time.Millisecond)); answered {
			return d, b.now.Sub(began)
		}
	}
	b.t.Fatalf("%s waits for longer than %v", id, most)
	return routing.Dispatch{}, 0
}

func distrusted(actions []routing.Action) (why string) {
	for _, action := range actions {
		if a, is := action.(routing.Distrusted); is {
			why += a.Why
		}
	}
	return why
}

// A worker that is full by its reports alone is asked after a while. When it takes the
// request at once, the reports are not believed any more, and others do not wait.
func TestReportsAloneDoNotStopDispatch(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	forge := func() routing.LoadReported { return full("d1") }
	b.do(forge())
	r := b.request(agg, 10)
	if _, _, answered := b.arrive(r); answered {
		t.Fatal("sent at once to a worker that reports to be full")
	}
	next := b.request(agg, 10)
	b.arrive(next)
	if _, waited := b.waitFor(r.ID, forge, time.Minute); waited > 600*time.Millisecond {
		t.Errorf("waited %v", waited)
	}
	if _, _, answered := answerTo(next.ID, b.last); answered {
		t.Error("two are sent before it is known what came of the first")
	}
	actions := b.do(routing.Taken{ID: r.ID, Role: controlv1.Role_ROLE_DECODE})
	if _, _, answered := answerTo(next.ID, actions); !answered || distrusted(actions) != routing.DistrustRefuted {
		t.Errorf("when the worker took the first: %v", actions)
	}
	for range 20 {
		b.do(routing.Ended{ID: r.ID})
		b.do(forge())
		b.now = b.now.Add(50 * time.Millisecond)
		r = b.request(agg, 10)
		if _, _, answered := b.arrive(r); !answered {
			t.Fatal("a request waits because of reports that are not believed")
		}
	}
	if n := b.f.DistrustedWorkers(b.now); n != 1 {
		t.Errorf("%d workers are not believed", n)
	}
}

// One that really is full refuses the request or queues it: it is left alone then, or
// gets no second one.
func TestWorkerThatReallyIsFull(t *testing.T) {
	t.Run("refuses", func(t *testing.T) {
		b := newBench(t, nil, decode("d1"))
		b.do(full("d1"))
		r := b.request(agg, 10)
		b.arrive(r)
		for tries := range 5 {
			_, waited := b.waitFor(r.ID, func() routing.LoadReported { return full("d1") }, time.Minute)
			if waited < 450*time.Millisecond {
				t.Errorf("try %d after %v", tries, waited)
			}
			b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: routing.Ref{ID: "d1", Epoch: 1}, Busy: true}}})
			r.Attempt++
			b.arrive(r)
		}
		if n := b.f.DistrustedWorkers(b.now); n != 0 {
			t.Error("its reports are not believed, though they were true")
		}
	})
	t.Run("queues", func(t *testing.T) {
		b := newBench(t, nil, decode("d1"))
		b.do(full("d1"))
		r, next := b.request(agg, 10), b.request(agg, 10)
		b.arrive(r)
		b.arrive(next)
		b.waitFor(r.ID, func() routing.LoadReported { return full("d1") }, time.Minute)
		for range 40 {
			b.do(full("d1"))
			if _, _, answered := answerTo(next.ID, b.pass(50*time.Millisecond)); answered {
				t.Fatal("another is sent while the first is queued")
			}
		}
		actions := b.do(routing.Taken{ID: r.ID, Role: controlv1.Role_ROLE_DECODE})
		if _, _, answered := answerTo(next.ID, actions); !answered || distrusted(actions) != "" {
			t.Errorf("when the first was taken, late: %v", actions)
		}
	})
	t.Run("others have room", func(t *testing.T) {
		b := newBench(t, nil, decode("d1"), decode("d2"))
		for range 30 {
			b.do(full("d1"))
			b.do(load("d2", controlv1.Role_ROLE_DECODE, nil))
			r := b.request(agg, 10)
			if d, _, _ := b.arrive(r); d.Decode.ID != "d2" {
				t.Fatalf("sent to %q", d.Decode.ID)
			}
			b.do(routing.Ended{ID: r.ID})
			b.pass(50 * time.Millisecond)
		}
	})
}

// A worker that was full, or had no room for a whole answer, may have room when it takes a request: its
// reports were true.
func TestTrueReportsAreBelieved(t *testing.T) {
	d1 := controlv1.Role_ROLE_DECODE
	for _, c := range []struct {
		name       string
		free, then uint32 // blocks free when it waits, and by a report before it is taken
		tasks      uint64 // that the report counts
		refuted    bool
	}{
		{"no room", 0, 0, 0, true},
		{"room by then", 0, 50, 0, false},
		{"the prompt has room", 4, 4, 0, false},
		{"the prompt has none", 3, 3, 0, true},
		{"the report counts it", 0, 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			report := func(free uint32, tasks uint64) routing.LoadReported {
				return load("d1", d1, func(r *controlv1.LoadReport) { r.BlocksFree, r.Tasks = free, tasks })
			}
			b.do(report(c.free, 0))
			r := b.request(agg, 100)
			r.MaxNew = 1000
			b.arrive(r)
			b.waitFor(r.ID, func() routing.LoadReported { return report(c.free, 0) }, time.Second)
			b.do(routing.Queued{ID: r.ID, Role: d1, Task: 1})
			b.pass(20 * time.Millisecond)
			b.do(report(c.then, c.tasks))
			b.pass(10 * time.Millisecond)
			if why := distrusted(b.do(routing.Taken{ID: r.ID, Role: d1})); (why != "") != c.refuted {
				t.Errorf("not believed: %q", why)
			}
		})
	}
}

// Reports are doubted for as long as they alone keep a worker from a request: what the router's own
// requests keep from it waits for them.
func TestOwnRequestsAreNoReasonToDoubt(t *testing.T) {
	for _, front := range []bool{false, true} {
		t.Run(fmt.Sprint("another in front ", front), func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			report := func() routing.LoadReported {
				return load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 3 })
			}
			b.do(report())
			r := b.request(agg, 300)
			b.arrive(r)
			first := b.request(agg, 300)
			first.Priority = 1
			if front {
				b.arrive(first)
			}
			b.pass(100 * time.Millisecond)
			var small routing.Request
			for range 3 { // it runs no more
				small = b.request(agg, 1)
				small.MaxNew, small.Priority = 1, 2
				if d, refusal, _ := b.arrive(small); d.ID == "" {
					t.Fatalf("%+v", refusal)
				}
			}
			b.pass(time.Second)
			ended := b.do(routing.Ended{ID: small.ID})
			if _, _, sent := answerTo(r.ID, append(ended, b.do(routing.Cancelled{ID: first.ID})...)); sent {
				t.Error("sent at once, since reports alone kept it long ago")
			}
			if _, waited := b.waitFor(r.ID, report, time.Second); waited < 450*time.Millisecond {
				t.Errorf("sent after %v", waited)
			}
		})
	}
}

// Reports whose numbers cannot be are dropped; of two senders neither is believed.
func TestNumbersOfReports(t *testing.T) {
	type step struct {
		after    time.Duration
		number   uint64
		free     uint32
		believed uint32 // free blocks afterwards, by what is believed
		distrust bool
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"in order", []step{{0, 7, 50, 50, false}, {25 * time.Millisecond, 8, 40, 40, false}, {time.Second, 10, 30, 30, false}}},
		{"the same twice", []step{{0, 7, 50, 50, false}, {0, 7, 50, 50, false}}},
		{"one number, two contents", []step{{0, 7, 50, 50, false}, {0, 7, 0, 128, true}, {time.Second, 8, 0, 128, false}}},
		{"an earlier number", []step{{0, 7, 50, 50, false}, {0, 6, 0, 128, true}}},
		{"none", []step{{0, 7, 50, 50, false}, {0, 0, 0, 50, false}}},
		{"far ahead", []step{{0, 7, 50, 50, false}, {time.Second, 7 + 400 + 41, 0, 50, false}, {0, 7 + 400 + 40, 20, 20, false}}},
		{"after an outage", []step{{0, 7, 50, 50, false}, {time.Hour, 100000, 20, 20, false}}},
		{"more than there are", []step{{0, 7, 1 << 31, 128, false}}},
		{"believed again", []step{{0, 7, 50, 50, false}, {0, 6, 0, 128, true}, {11 * time.Second, 5, 60, 60, false}}},
		{"never for long", []step{{0, 7, 50, 50, false}, {0, 6, 0, 128, true}, {11 * time.Second, 5, 60, 60, false}, {0, 4, 0, 128, true}, {11 * time.Second, 5, 60, 128, false}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			for i, s := range test.steps {
				b.pass(s.after)
				report := load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.Origin.Sequence, r.BlocksFree = s.number, s.free
				})
				if said := distrusted(b.do(report)) == routing.DistrustNumbers; said != s.distrust {
					t.Errorf("step %d: distrusted %v", i, said)
				}
				// What fits in so many blocks is sent, and what does not is not.
				for _, blocks := range []uint32{s.believed, s.believed + 1} {
					r := b.request(agg, int(blocks)*32)
					r.MaxNew = 1
					_, refusal, answered := b.arrive(r)
					if sent := answered && refusal.Reason == ""; sent != (blocks == s.believed) {
						t.Errorf("step %d: %d blocks, sent %v (%+v)", i, blocks, sent, refusal)
					}
					b.do(routing.Cancelled{ID: r.ID})
					b.do(routing.Ended{ID: r.ID})
				}
			}
		})
	}
}

// Forged KV events make a prefix hit miss, and a worker is asked for its prefix cache
// once a second at most because of them.
func TestForgedEventsAskRarely(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	ref := routing.Ref{ID: "d1", Epoch: 1}
	sequence := uint64(3)
	answer := func() routing.BlocksListed {
		return routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1, Sequence: sequence, BlockHashes: []uint64{1}}}
	}
	b.do(answer())
	asked := 0
	for i := range 1000 {
		sequence += 1000
		forged := &controlv1.KvEvent{Origin: &controlv1.Origin{Id: "d1", Epoch: 1, Sequence: sequence}, Stored: []uint64{uint64(i)}}
		for _, action := range slices.Concat(b.do(routing.BlocksChanged{Event: forged}), b.pass(10*time.Millisecond)) {
			if _, is := action.(routing.ListBlocks); is {
				asked++
				b.do(answer())
			}
		}
	}
	if asked == 0 || asked > 11 {
		t.Errorf("asked %d times in ten seconds", asked)
	}
}

// A worker whose reports are not believed is not taken for one that hangs.
func TestDistrustedWorkerIsUsed(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	b.pass(time.Minute)
	b.do(load("d2", controlv1.Role_ROLE_DECODE, nil))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.Origin.Sequence = 1 }))
	used := make(map[string]int)
	for range 40 {
		r := b.request(agg, 10)
		d, _, _ := b.arrive(r)
		used[d.Decode.ID]++
		b.do(routing.Ended{ID: r.ID})
	}
	if used["d1"] < 10 || used["d2"] < 10 {
		t.Errorf("used %v", used)
	}
}

// Whatever is reported, no request waits for longer than it takes to ask a decode and
// then a prefill worker, while by the router's own account there is room.
func TestArbitraryReportsStarveNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := routing.New(config(), rand.New(rand.NewPCG(1, 2)))
		now := time.Unix(1000, 0)
		workers := []string{"d1", "d2", "p1", "p2"}
		waiting, running := map[string]time.Time{}, []string{}
		var handle func(event routing.Event)
		handle = func(event routing.Event) {
			for _, action := range f.Handle(now, event) {
				switch a := action.(type) {
				case routing.Dispatch:
					delete(waiting, a.ID)
					running = append(running, a.ID)
					// The workers have room, take it and compute its prompt.
					handle(routing.Taken{ID: a.ID, Role: controlv1.Role_ROLE_DECODE})
					handle(routing.Taken{ID: a.ID, Role: controlv1.Role_ROLE_PREFILL})
					handle(routing.PromptDone{ID: a.ID})
				case routing.Refuse:
					t.Fatalf("%s is refused: %+v", a.ID, a.Refusal)
				}
			}
		}
		var view routing.ViewChanged
		for _, id := range workers {
			view.Workers = append(view.Workers, record(id, roleOf(id)))
		}
		handle(view)
		for _, id := range workers {
			handle(routing.Connected{Worker: routing.Ref{ID: id, Epoch: 1}})
		}
		pass := func(d time.Duration) {
			pass(f, &now, d, func() { handle(routing.Tick{}) })
			for id, since := range waiting {
				if waited := now.Sub(since); waited > 2*config().ReportDoubt {
					t.Fatalf("%s waits for %v", id, waited)
				}
			}
		}
		sequence := map[string]uint64{}
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if len(waiting)+len(running) < 2 { // by the router's own account two always fit
					r := routing.Request{ID: fmt.Sprint("r", i), Tenant: "t", Model: "fable", Arrived: now, Tokens: 100, MaxNew: 10,
						Mode: rapid.SampledFrom(modes).Draw(t, "mode")}
					waiting[r.ID] = now
					handle(routing.Arrived{Request: r})
				}
			case 1:
				if len(running) > 0 {
					handle(routing.Ended{ID: running[0]})
					running = running[1:]
				}
			default:
				id := rapid.SampledFrom(workers).Draw(t, "id")
				sequence[id] += rapid.SampledFrom([]uint64{1, 1, 1, 1, 0, 50, 1 << 40}).Draw(t, "number")
				report := &controlv1.LoadReport{Origin: &controlv1.Origin{Id: id, Epoch: 1, Sequence: sequence[id]},
					BlocksFree: rapid.SampledFrom([]uint32{0, 0, 1, 128}).Draw(t, "free"), RunningSequences: rapid.SampledFrom([]uint32{0, 3, 1 << 31}).Draw(t, "running"),
					WaitingTokens: rapid.SampledFrom([]uint64{0, 1 << 50}).Draw(t, "tokens"), StepTime: &controlv1.StepTimeModel{Samples: 1}}
				deface(t, report.GetStepTime().ProtoReflect())
				handle(routing.LoadReported{Report: report})
			}
			pass(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
		}
		pass(2 * config().ReportDoubt)
		pass(time.Millisecond)
	})
}
