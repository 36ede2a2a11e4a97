package kvtransfer_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// road is a connected sender and receiver with blocks to move.
type road struct {
	b        *testing.B
	layout   kvcache.Layout
	source   []kvcache.BlockID
	sender   *kvtransfer.Sender
	receiver *kvtransfer.Receiver
}

// newRoad connects a sender and a receiver. Each block has 16 slices of 64 KiB.
func newRoad(b *testing.B, address string, blocks int) *road {
	layout := kvtransfertest.Layout(16, 64<<10)
	listener, err := kvtransfer.Listen(address)
	if err != nil {
		b.Fatal(err)
	}
	if !strings.HasPrefix(address, "unix:") {
		address = listener.Addr().String()
	}
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: 7, Layout: layout, Addresses: []string{address}}, kvtransfertest.NewHostPages(layout, blocks))
	if err != nil {
		b.Fatal(err)
	}
	sender, err := kvtransfer.NewSender(kvtransfer.SenderConfig{WorkerID: "prefill-0", Epoch: 9, Layout: layout,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		}}, kvtransfertest.NewHostPages(layout, blocks))
	if err != nil {
		b.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: receiver.MaxMessageBytes()}))
	receiver.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(listener) })
	tasks.Go(func() { _ = receiver.Run(ctx) })
	b.Cleanup(func() {
		_ = sender.Close(ctx)
		cancel()
		_ = server.Stop(ctx)
		tasks.Wait()
	})
	return &road{b: b, layout: layout, source: kvcache.BlockRange(0, blocks), sender: sender, receiver: receiver}
}

// move moves all blocks and returns the number of chunks.
func (r *road) move() int {
	over := make(chan struct{})
	ticket, err := r.receiver.Reserve(kvtransfer.Reservation{
		Blocks: r.source, PromptBlocks: len(r.source),
		Committed: func(kvtransfer.Arrival) { close(over) },
		Failed:    func(err error) { r.b.Error(err) },
		Drained:   func() { close(over) },
	})
	if err != nil {
		r.b.Fatal(err)
	}
	t, err := r.sender.Open(context.Background(), ticket, "r")
	if err != nil {
		r.b.Fatal(err)
	}
	for layer := range r.layout.Layers {
		t.Send(layer, 0, r.source)
	}
	t.Commit(nil)
	<-over
	<-t.Done()
	return t.Stats().Chunks
}

// BenchmarkTransfer moves 64 MiB from pages into pages.
func BenchmarkTransfer(b *testing.B) {
	for _, transport := range []string{"tcp", "unix"} {
		b.Run(transport, func(b *testing.B) {
			address := "127.0.0.1:0"
			if transport == "unix" {
				address = "unix://" + b.TempDir() + "/s"
			}
			r := newRoad(b, address, 64)
			b.SetBytes(int64(len(r.source)) * int64(r.layout.PageBytes()))
			for b.Loop() {
				r.move()
			}
		})
	}
}

// ours is the prefix of this project's function names.
const ours = "github.com/tandem-serving/tandem/"

// BenchmarkAllocations counts this project's allocations per chunk, as the difference
// between moving few chunks and many. An allocation is charged to the innermost function
// outside the runtime.
func BenchmarkAllocations(b *testing.B) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	few, many := newRoad(b, "127.0.0.1:0", 4), newRoad(b, "127.0.0.1:0", 256)
	for range 5 {
		few.move()
		many.move()
	}
	for b.Loop() {
		fewChunks, fewSites := few.allocations(4)
		manyChunks, manySites := many.allocations(4)
		var grown int64
		for site, n := range manySites {
			if more := n - fewSites[site]; more > 0 {
				grown += more
				b.Logf("%s: %d for %d chunks, %d for %d", site, fewSites[site], fewChunks, n, manyChunks)
			}
		}
		b.ReportMetric(float64(grown)/float64(manyChunks-fewChunks), "allocs/chunk")
	}
}

// allocations moves the blocks repeatedly and returns the number of chunks and of
// allocations by function.
func (r *road) allocations(times int) (chunks int, sites map[string]int64) {
	before := profile(r.b)
	for range times {
		chunks += r.move()
	}
	sites = profile(r.b)
	for site := range sites {
		sites[site] -= before[site]
	}
	return chunks, sites
}

// profile counts allocations by function of this project since the start.
func profile(b *testing.B) map[string]int64 {
	runtime.GC() // a profile is as of the collection before the last
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 20_000)
	n, ok := runtime.MemProfile(records, true)
	if !ok {
		b.Fatalf("%d places allocate", n)
	}
	sites := map[string]int64{}
	for _, record := range records[:n] {
		frames := runtime.CallersFrames(record.Stack())
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if strings.HasPrefix(frame.Function, "runtime.") {
				continue
			}
			if strings.HasPrefix(frame.Function, ours) && !strings.Contains(frame.Function, "kvtransfer_test.") {
				sites[frame.Function] += record.AllocObjects
			}
			break
		}
	}
	return sites
}
