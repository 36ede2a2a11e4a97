package kvtransfer_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// BenchmarkShortBehindLong sends one block alone, and behind a hundred transfers of 16
// blocks each, over loopback. It reports the median times from Open to the end, their
// ratio, and the throughput.
func BenchmarkShortBehindLong(b *testing.B) {
	for _, streams := range []int{1, 2, 4} {
		for _, c := range []struct{ credit, chunk int }{
			{4 << 20, 1 << 20}, {64 << 20, 1 << 20},
		} {
			b.Run(fmt.Sprintf("%d streams, %d KiB of credit, chunks of %d KiB", streams, c.credit>>10, c.chunk>>10), func(b *testing.B) {
				shortBehindLong(b, streams, c.credit, c.chunk)
			})
		}
	}
}

func shortBehindLong(b *testing.B, streams, credit, chunk int) {
	const long, longBlocks = 100, 16
	layout := kvcache.Layout{
		ModelDigest: "bench", ArithmeticClass: "bench/1", Layers: 16, KVHeads: 4, HeadSize: 64,
		ElementType: "bf16", BlockTokens: 32, Order: "bench/1", SliceBytes: 32 << 10,
	}
	w := newWire(b, layout, longBlocks+1, streams, credit, chunk)
	alone := make([]time.Duration, 0, 200)
	for range 200 {
		alone = append(alone, w.send(b, kvcache.BlockRange(longBlocks, 1)))
	}
	var behind []time.Duration
	var elapsed time.Duration
	for b.Loop() {
		var transfers sync.WaitGroup
		begun := time.Now()
		for range long {
			transfers.Go(func() { w.send(b, kvcache.BlockRange(0, longBlocks)) })
		}
		done := make(chan struct{})
		go func() { transfers.Wait(); close(done) }()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
				behind = append(behind, w.send(b, kvcache.BlockRange(longBlocks, 1)))
			}
		}
		elapsed += time.Since(begun)
	}
	median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2].Microseconds()) }
	b.ReportMetric(median(alone), "alone-us")
	b.ReportMetric(median(behind), "behind-us")
	b.ReportMetric(median(behind)/median(alone), "times")
	b.ReportMetric(float64(b.N*long*longBlocks*layout.PageBytes())/elapsed.Seconds()/1e9, "GB/s")
}

// wired is a sender and a receiver connected over loopback.
type wired struct {
	sender   *kvtransfer.Sender
	receiver *kvtransfer.Receiver
}

func newWire(b *testing.B, layout kvcache.Layout, blocks, streams, credit, chunk int) *wired {
	listener, err := kvtransfer.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	w := new(wired)
	if w.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: 7, Layout: layout, Addresses: []string{listener.Addr().String()}, CreditBytes: credit, MaxChunkBytes: chunk,
	}, kvtransfertest.NewHostPages(layout, blocks)); err != nil {
		b.Fatal(err)
	}
	if w.sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: "prefill-0", Epoch: 9, Layout: layout, Streams: streams,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		},
	}, kvtransfertest.NewHostPages(layout, blocks)); err != nil {
		b.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{}))
	w.receiver.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { serveUntilStopped(b, server, listener) })
	tasks.Go(func() { _ = w.receiver.Run(ctx) })
	b.Cleanup(func() {
		_ = w.sender.Close(ctx)
		cancel()
		_ = server.Stop(ctx)
		tasks.Wait()
	})
	return w
}

func serveUntilStopped(b *testing.B, server *rpc.Server, listener net.Listener) {
	if err := server.Serve(listener); err != nil {
		b.Error(err)
	}
}

// send moves all slices of some blocks and returns the time taken.
func (w *wired) send(b *testing.B, blocks []kvcache.BlockID) time.Duration {
	ticket, err := w.receiver.Reserve(kvtransfer.Reservation{
		Blocks: blocks, PromptBlocks: len(blocks),
		Committed: func(kvtransfer.Arrival) {},
		Failed:    func(err error) { b.Error(err) },
		Drained:   func() {},
	})
	if err != nil {
		b.Error(err)
		return 0
	}
	begun := time.Now()
	tr, err := w.sender.Open(context.Background(), ticket, "r")
	if err != nil {
		b.Error(err)
		return 0
	}
	for layer := range 16 {
		tr.Send(layer, 0, blocks)
	}
	tr.Commit(nil)
	<-tr.Done()
	if err := tr.Err(); err != nil {
		b.Error(err)
	}
	return time.Since(begun)
}
