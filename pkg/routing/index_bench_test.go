package routing_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// indexed is workers that hold a million blocks together, in prompts of 64, and requests for them.
type indexed struct {
	random  *rand.Rand
	config  routing.Config
	records []*controlv1.WorkerRecord
	held    map[string][]uint64
	prompts [][]kvcache.Hash
	asked   int
	running []string
}

const (
	indexedBlocks = 1 << 20
	promptBlocks  = 64
)

func newIndexed(prefills, decodes int) *indexed {
	x := &indexed{random: rand.New(rand.NewPCG(1, 2)), config: config(), held: make(map[string][]uint64)}
	x.config.IndexBlocks, x.config.TenantMaxRequests, x.config.OmitCandidates = indexedBlocks, 1<<20, true
	for i := range prefills + decodes {
		r := aggregatedPrefill(fmt.Sprintf("p%04d", i))
		if i >= prefills {
			r = decode(fmt.Sprintf("d%04d", i))
		}
		r.Capacity = &controlv1.Capacity{Blocks: 1 << 20, BlockTokens: 32, MaxBatchTokens: 8192, MaxSequences: 1024, MaxWaiting: 1024}
		x.records = append(x.records, r)
	}
	for len(x.prompts)*promptBlocks < indexedBlocks {
		prompt := make([]kvcache.Hash, promptBlocks)
		for i := range prompt {
			prompt[i] = kvcache.Hash(x.random.Uint64())
		}
		id := x.records[len(x.prompts)%len(x.records)].GetId()
		x.held[id] = append(x.held[id], kvcache.HashValues(prompt)...)
		x.prompts = append(x.prompts, prompt)
	}
	return x
}

func (x *indexed) list(ref routing.Ref) []routing.BlocksListed {
	return routing.Listed(ref, &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: x.held[ref.ID]})
}

// router is one that knows all of it.
func (x *indexed) router(now time.Time) *routing.Router {
	f := routing.New(x.config, rand.New(rand.NewPCG(1, 2)))
	f.Handle(now, routing.ViewChanged{Workers: x.records, Live: true})
	for _, r := range x.records {
		ref := routing.Ref{ID: r.GetId(), Epoch: 1}
		for _, part := range x.list(ref) {
			f.Handle(now, part)
		}
		f.Handle(now, routing.Connected{Worker: ref})
		f.Handle(now, load(ref.ID, r.GetRole(), func(l *controlv1.LoadReport) { l.BlocksFree = 1 << 20 }))
	}
	return f
}

// request is one whose prompt begins as one that is held.
func (x *indexed) request(f *routing.Router, now time.Time) routing.Request {
	x.asked++
	hashes := slices.Clone(x.prompts[x.random.IntN(len(x.prompts))])
	for i := x.random.IntN(promptBlocks + 1); i < promptBlocks; i++ {
		hashes[i] = kvcache.Hash(x.random.Uint64())
	}
	return routing.Request{
		ID: fmt.Sprint("r", x.asked), Tenant: "t", Model: "fable", Mode: auto, Arrived: now, Tokens: promptBlocks*32 + 1, MaxNew: 64,
		Hashes: hashed(f, func(routing.BlockKey) []kvcache.Hash { return hashes }),
	}
}

// decide hands in one and ends the one before the last 512.
func (x *indexed) decide(b *testing.B, f *routing.Router, now time.Time) time.Duration {
	event := routing.Arrived{Request: x.request(f, now)}
	began := processorTime(b)
	actions := f.Handle(now, event)
	took := processorTime(b) - began
	if _, refusal, answered := answerTo(event.Request.ID, actions); !answered || refusal.Reason != "" {
		b.Fatalf("answered %v: %s", answered, refusal.Message)
	}
	f.Handle(now, routing.PromptDone{ID: event.Request.ID})
	if x.running = append(x.running, event.Request.ID); len(x.running) > 512 {
		f.Handle(now, routing.Ended{ID: x.running[0], Served: true, Tokens: 64, Decoding: time.Second})
		x.running = x.running[1:]
	}
	return took
}

// processorTime is what the thread has used, which other processes do not add to.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// What a decision takes for a prompt of 2k tokens, with a million blocks in the index, in processor
// time.
func BenchmarkDecideIndexed(b *testing.B) {
	for _, workers := range [][2]int{{128, 128}, {1000, 1000}} {
		b.Run(fmt.Sprintf("workers=%d+%d", workers[0], workers[1]), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			now, x := time.Unix(1000, 0), newIndexed(workers[0], workers[1])
			f := x.router(now)
			runtime.GC()
			var times []time.Duration
			for n := 0; b.Loop(); n++ {
				now = now.Add(100 * time.Microsecond)
				r := x.records[n%len(x.records)]
				f.Handle(now, load(r.GetId(), r.GetRole(), func(l *controlv1.LoadReport) { l.BlocksFree = 1 << 20 }))
				times = append(times, x.decide(b, f, now))
			}
			slices.Sort(times)
			b.ReportMetric(microseconds(times[len(times)/2]), "p50-us")
			b.ReportMetric(microseconds(times[len(times)*99/100]), "p99-us")
		})
	}
}

// A router that starts beside 256 workers which hold a million blocks: how long it takes to take
// them all in, with a decision after each event, and how long the longest of these is, with the
// event that it waits for; in processor time.
func BenchmarkRestart(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, x := time.Unix(1000, 0), newIndexed(128, 128)
	for b.Loop() {
		f := routing.New(x.config, rand.New(rand.NewPCG(1, 2)))
		x.running = nil
		var events []routing.Event
		events = append(events, routing.ViewChanged{Workers: x.records, Live: true})
		for _, r := range x.records {
			events = append(events, routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}})
		}
		began, longest := processorTime(b), time.Duration(0)
		for connected := 0; len(events) > 0; {
			event := events[0]
			events = events[1:]
			if _, is := event.(routing.Connected); is {
				connected++
			}
			start := processorTime(b)
			for _, a := range f.Handle(now, event) {
				if ask, is := a.(routing.ListBlocks); is {
					for _, part := range x.list(ask.Worker) {
						events = append(events, part)
					}
				}
			}
			waited := processorTime(b) - start
			if connected == len(x.records) {
				waited += x.decide(b, f, now)
			}
			longest = max(longest, waited)
		}
		b.ReportMetric(float64(processorTime(b)-began)/float64(time.Millisecond), "ms-to-all")
		b.ReportMetric(microseconds(longest), "longest-us")
		if f.IndexedBlocks() != indexedBlocks || f.UnsureWorkers(now) > 0 {
			b.Fatalf("%d blocks, %d workers are not known", f.IndexedBlocks(), f.UnsureWorkers(now))
		}
	}
}
