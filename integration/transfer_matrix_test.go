package integration_test

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// ending is what happens to a request in a phase.
type ending struct {
	name string
	// deadline: the request has one, which passes.
	deadline bool
	// happen makes it happen. It returns leave, which cleans up, and held, which says
	// what the leaver still holds.
	happen func(g *rig, c *call) (leave func(), held func() string)
	// want is how the request ends.
	want codes.Code
}

// endings are what may end a request before its time, or try to.
func endings() []ending {
	nobody := func() {}
	nothing := func() string { return "" }
	return []ending{
		{name: "client cancels", want: codes.Canceled, happen: func(_ *rig, c *call) (func(), func() string) {
			c.cancel()
			return nobody, nothing
		}},
		{name: "deadline passes", want: codes.DeadlineExceeded, deadline: true, happen: func(_ *rig, c *call) (func(), func() string) {
			<-c.done
			return nobody, nothing
		}},
		{name: "prefill dies", happen: func(g *rig, _ *call) (func(), func() string) {
			g.startPrefill().kill()
			return nobody, nothing
		}},
		{name: "decode dies", happen: func(g *rig, _ *call) (func(), func() string) {
			g.startDecode().kill()
			return nobody, nothing
		}},
		{name: "router dies", want: codes.Unavailable, happen: func(g *rig, c *call) (func(), func() string) {
			g.router.kill()
			<-c.done
			g.startRouter()
			return nobody, nothing
		}},
		{name: "prefill leaves at once", happen: func(g *rig, _ *call) (func(), func() string) {
			left := g.startPrefill()
			g.drain(left)
			return left.kill, left.held
		}},
		{name: "decode leaves at once", happen: func(g *rig, _ *call) (func(), func() string) {
			left := g.startDecode()
			g.drain(left)
			return left.kill, left.held
		}},
		{name: "connection breaks", happen: func(g *rig, _ *call) (func(), func() string) {
			g.decode.proxy.Cut()
			return nobody, nothing
		}},
	}
}

// drain asks a worker to end what runs on it, and waits until it is told that this
// has begun.
func (g *rig) drain(w *rigWorker) {
	g.t.Helper()
	conn, err := rpc.Dial(w.record.GetAddresses()[0], rpc.ClientConfig{})
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stream, err := workerv1.NewWorkerClient(conn).Drain(ctx, &workerv1.DrainRequest{Epoch: w.record.GetEpoch(), Grace: durationpb.New(0)})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// Whatever ends a request in whatever phase, over whatever transport: it gets the
// right status, or goes on elsewhere with the right tokens; nothing of it stays; and
// the next request is served rightly.
func TestTransferEndings(t *testing.T) {
	longtest.Only(t)
	for _, network := range faultstest.Transports() {
		t.Run(network, func(t *testing.T) {
			g := newRig(t, network)
			reference := newRig(t, network)
			number := 0
			next := func(t *testing.T) {
				number++
				want := generate(t, reference.client, g.request(number, aggregated)).Tokens
				c := g.call(t.Context(), g.request(number, disaggregated))
				c.check(t, want, codes.OK)
				freeAfter(t, time.Now(), g.held)
			}
			next(t)
			begin, heap := measure(), uint64(0)
			var slowest time.Duration
			all := append([]phase{queued()}, phases()...)
			for i, e := range endings() {
				if i == 1 { // after those of one ending all caches are full
					heap = liveHeap()
				}
				for _, p := range all {
					if t.Failed() { // what is left behind would spoil the rest
						return
					}
					t.Run(e.name+" when "+p.name, func(t *testing.T) {
						defer g.within(t)()
						number++
						want := generate(t, reference.client, g.request(number, aggregated)).Tokens
						took := g.end(t, p, e, number, want)
						slowest = max(slowest, took)
						t.Logf("free again after %v", took.Round(time.Millisecond))
						next(t)
						begin.same(t)
					})
				}
			}
			now := liveHeap()
			t.Logf("live heap: %d KiB, %d KiB after the first ending", now>>10, heap>>10)
			if now > heap+heapGrowth {
				t.Errorf("%d KiB are in use, %d KiB after the first ending", now>>10, heap>>10)
			}
			t.Logf("all blocks were free again within %v", slowest.Round(time.Millisecond))
		})
	}
}

// end brings a request to a phase, and ends it there. It says how long it took from
// then on until nothing was held any more.
func (g *rig) end(t *testing.T, p phase, e ending, number int, want []uint32) time.Duration {
	t.Helper()
	var atEnd []func()
	defer func() {
		for _, f := range slices.Backward(atEnd) {
			f()
		}
	}()
	for patience := 250 * time.Millisecond; ; patience *= 2 {
		reached, release := p.hold(g)
		ctx, cancel := context.WithCancel(t.Context())
		if e.deadline {
			ctx, cancel = context.WithTimeout(t.Context(), patience)
		}
		atEnd = append(atEnd, release, cancel)
		c := g.call(ctx, g.request(number, disaggregated))
		select {
		case <-reached:
		case <-c.done:
			if e.deadline && patience < timeout { // too short for this machine
				release()
				freeAfter(t, time.Now(), g.held)
				continue
			}
			t.Fatalf("the request ended before it was %s: %v", p.name, c.err)
		}
		leave, left := e.happen(g, c)
		allowed := []codes.Code{e.want}
		if e.deadline && p.complete {
			// The prefill worker's word of the deadline can come before the router's own.
			allowed = append(allowed, codes.OK)
		}
		if e.deadline || e.want != codes.OK {
			c.check(t, want, allowed...)
		}
		happened := time.Now()
		release()
		c.check(t, want, allowed...)
		took := freeAfter(t, happened, g.held, left)
		leave()
		return took
	}
}

// queued is the phase before any block is reserved: the decode worker's are all of
// another request, which waits for its engine.
func queued() phase {
	number := 1_000_000
	return phase{name: "queued", hold: func(g *rig) (<-chan struct{}, func()) {
		gate := g.decode.gate
		reached := make(chan struct{})
		blocked := gate.close(1)
		number++
		occupant := g.call(context.Background(), g.request(number, disaggregated))
		await(g.t, "another request to occupy the blocks", blocked)
		go func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				load, _ := g.decode.driver.Load()
				if load.WaitingSequences > 0 || g.signals.queued() > 0 {
					close(reached)
					return
				}
				select {
				case <-tick.C:
				case <-occupant.done:
					return
				}
			}
		}()
		return reached, func() {
			gate.open()
			<-occupant.done
		}
	}}
}

// heapGrowth is what all endings but the first may leave on the heap: the workers that
// died, which the test keeps, are half of it. The KV of one request for each, of rigNeeds
// blocks of 32 KiB, would be three times as much.
const heapGrowth = 4 << 20

// liveHeap is how many bytes are in use on the heap.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // also what had a finalizer, and what pools kept
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// measured is what a process holds.
type measured struct{ goroutines, files int }

func measure() measured {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		files = nil // not Linux
	}
	return measured{runtime.NumGoroutine(), len(files)}
}

// same waits until there is no more than there was.
func (m measured) same(t *testing.T) {
	t.Helper()
	// Timers and the garbage collector come and go.
	const slack = 4
	limit, tick := time.NewTimer(timeout), time.NewTicker(2*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		now := measure()
		if now.goroutines <= m.goroutines+slack && now.files <= m.files+slack {
			return
		}
		runtime.GC() // which frees the shared pages of dead engines
		select {
		case <-tick.C:
		case <-limit.C:
			stacks := make([]byte, 1<<20)
			t.Fatalf("%+v, before %+v:\n%s", now, m, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
