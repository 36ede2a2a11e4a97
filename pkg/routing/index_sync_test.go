package routing_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// announces is a load report that says which KV event was the last.
func announces(id string, epoch, sequence uint64) routing.LoadReported {
	r := load(id, controlv1.Role_ROLE_DECODE, nil)
	r.Report.Origin.Epoch, r.Report.KvSequence = epoch, sequence
	return r
}

// A lost KV event that no other follows shows in the load reports after it. One that is only late
// does not count as lost.
func TestLostLastEventShows(t *testing.T) {
	for _, late := range []time.Duration{-1, 0, 50 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			b.holds("d1", sequence(3)...)
			b.do(announces("d1", 1, 0))
			if late == 0 {
				b.do(kvEvent("d1", 1, 4))
			}
			b.do(announces("d1", 1, 1))
			if late > 0 {
				b.pass(late)
				b.do(kvEvent("d1", 1, 4))
			}
			var asked []string
			for range 4 {
				asked = append(asked, asksFor(b.pass(500*time.Millisecond))...)
				b.do(announces("d1", 1, 1))
			}
			if lost := late < 0; (len(asked) > 0) != lost || (b.f.UnsureWorkers(b.now) > 0) != lost {
				t.Fatalf("asks %v, unsure of %d workers", asked, b.f.UnsureWorkers(b.now))
			}
			b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d1", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, Sequence: 1, BlockHashes: sequence(4)}})
			if blocks, known := b.f.Prefixes("d1"); len(blocks) != 4 || !known || b.f.UnsureWorkers(b.now) > 0 {
				t.Errorf("%v, %v, unsure of %d workers", blocks, known, b.f.UnsureWorkers(b.now))
			}
		})
	}
}

// cacheModel is a worker with a prefix cache, whose signals may be lost or late.
type cacheModel struct {
	epoch, sequence uint64
	holds           map[uint64]bool
	late            []routing.Event
	ask             bool // ListBlocks was sent, and not answered
}

// Whatever signals are lost, late, twice or out of order, and however often workers start again or
// connections break: a moment after the last change the router knows what every worker holds, if
// load reports and answers to ListBlocks come.
func TestIndexFollowsThroughLosses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config()
		c.IndexBlocks = 1 << 10
		f, now := routing.New(c, zero{}), time.Unix(1000, 0)
		workers := map[string]*cacheModel{"d1": {epoch: 1, holds: map[uint64]bool{}}, "d2": {epoch: 1, holds: map[uint64]bool{}}}
		names := slices.Sorted(maps.Keys(workers))
		ref := func(id string) routing.Ref { return routing.Ref{ID: id, Epoch: workers[id].epoch} }
		handle := func(event routing.Event) {
			for _, action := range f.Handle(now, event) {
				if a, is := action.(routing.ListBlocks); is && a.Worker == ref(a.Worker.ID) {
					workers[a.Worker.ID].ask = true
				}
			}
		}
		view := func() {
			var records []*controlv1.WorkerRecord
			for _, id := range names {
				r := decode(id)
				r.Epoch = workers[id].epoch
				records = append(records, r)
			}
			handle(routing.ViewChanged{Workers: records, Live: true})
		}
		pass := func(d time.Duration) { pass(f, &now, d, func() { handle(routing.Tick{}) }) }
		list := func(id string) []routing.BlocksListed {
			w := workers[id]
			return routing.Listed(ref(id), &workerv1.ListBlocksResponse{Epoch: w.epoch, Sequence: w.sequence, BlockHashes: slices.Sorted(maps.Keys(w.holds))})
		}
		answer := func(id string) {
			if workers[id].ask {
				workers[id].ask = false
				for _, part := range list(id) {
					handle(part)
				}
			}
		}
		pick := func(t *rapid.T) (string, *cacheModel) {
			id := rapid.SampledFrom(names).Draw(t, "worker")
			return id, workers[id]
		}
		signal := func(t *rapid.T, w *cacheModel, event routing.Event) {
			switch rapid.IntRange(0, 4).Draw(t, "delivery") {
			case 0: // it is lost
			case 1:
				w.late = append(w.late, event)
			case 2:
				w.late = append(w.late, event)
				fallthrough
			default:
				handle(event)
			}
		}
		view()
		for _, id := range names {
			handle(routing.Connected{Worker: ref(id)})
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				id, w := pick(t)
				event := &controlv1.KvEvent{}
				for _, block := range rapid.SliceOfNDistinct(rapid.Uint64Range(1, 20), 1, 5, rapid.ID).Draw(t, "blocks") {
					if w.holds[block] = !w.holds[block]; w.holds[block] {
						event.Stored = append(event.Stored, block)
					} else {
						delete(w.holds, block)
						event.Removed = append(event.Removed, block)
					}
				}
				w.sequence++
				event.Origin = &controlv1.Origin{Id: id, Epoch: w.epoch, Sequence: w.sequence}
				signal(t, w, routing.BlocksChanged{Event: event})
			},
			"late": func(t *rapid.T) {
				_, w := pick(t)
				if n := len(w.late); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "which")
					event := w.late[i]
					w.late = slices.Delete(w.late, i, i+1)
					handle(event)
				}
			},
			"load": func(t *rapid.T) {
				id, w := pick(t)
				signal(t, w, announces(id, w.epoch, w.sequence))
			},
			"answer": func(t *rapid.T) {
				id, _ := pick(t)
				answer(id)
			},
			"no answer": func(t *rapid.T) {
				id, w := pick(t)
				if w.ask {
					w.ask = false
					handle(routing.BlocksListed{Worker: ref(id)})
				}
			},
			"reconnect": func(t *rapid.T) {
				id, w := pick(t)
				handle(routing.Disconnected{Worker: ref(id)})
				w.ask = false
				handle(routing.Connected{Worker: ref(id)})
			},
			"restart": func(t *rapid.T) {
				id, w := pick(t)
				handle(routing.Disconnected{Worker: ref(id)})
				*w = cacheModel{epoch: w.epoch + 1, holds: map[uint64]bool{}, late: w.late}
				view()
				handle(routing.Connected{Worker: ref(id)})
			},
			"time": func(t *rapid.T) {
				pass(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
		})
		for range 200 { // of failed lists the last may have to wait for a minute
			pass(time.Second)
			for _, id := range names {
				handle(announces(id, workers[id].epoch, workers[id].sequence))
				answer(id)
			}
		}
		for _, id := range names {
			got, known := f.Prefixes(id)
			held := kvcache.HashValues(got)
			slices.Sort(held)
			if want := slices.Sorted(maps.Keys(workers[id].holds)); !known || !slices.Equal(held, want) {
				t.Fatalf("of %s %v is known, certain: %v; it holds %v", id, held, known, want)
			}
		}
		if n := f.UnsureWorkers(now); n > 0 {
			t.Fatalf("it is unsure of %d workers", n)
		}
	})
}

// zero is no chance at all.
type zero struct{}

func (zero) IntN(int) int { return 0 }
