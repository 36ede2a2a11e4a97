package kvtransfer_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// countingPool counts the bytes in use from a pool, and signals when requests reach a mark.
type countingPool struct {
	mem.BufferPool
	mark    int
	reached chan struct{}

	mu        sync.Mutex
	out, most int
	asked     int
	told      bool
}

func (p *countingPool) Get(n int) *[]byte {
	b := p.BufferPool.Get(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out += cap(*b)
	p.most = max(p.most, p.out)
	if p.asked += n; p.asked >= p.mark && !p.told {
		p.told = true
		close(p.reached)
	}
	return b
}

func (p *countingPool) Put(b *[]byte) {
	p.mu.Lock()
	p.out -= cap(*b)
	p.mu.Unlock()
	p.BufferPool.Put(b)
}

// bulk is a service whose handler reads chunks once released.
type bulk struct {
	begin    <-chan struct{}
	received chan int
	failed   chan error
}

func (s bulk) stream(_ any, stream grpc.ServerStream) error {
	<-s.begin
	var m wire.Inbound
	defer m.Free()
	chunks := 0
	for {
		if err := stream.RecvMsg(&m); err != nil {
			if !errors.Is(err, io.EOF) {
				s.failed <- err
			}
			s.received <- chunks
			return nil
		}
		chunks++
		m.Free()
	}
}

// A sender that ignores credit makes its receiver hold at most a window and a message, and
// every buffer is returned.
func TestHeldMemoryIsBounded(t *testing.T) {
	for _, transport := range []string{"tcp", "unix"} {
		t.Run(transport, func(t *testing.T) {
			const slice, chunks = 512 << 10, 64
			cfg := kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: 1 << 20})
			window := int(cfg.WindowBytes)
			if window > kvtransfer.DefaultCreditBytes {
				t.Fatalf("a window of %d bytes is over a credit of %d", window, kvtransfer.DefaultCreditBytes)
			}
			pool := &countingPool{BufferPool: cfg.BufferPool, mark: window / 2, reached: make(chan struct{})}
			cfg.BufferPool = pool
			address := "127.0.0.1:0"
			if transport == "unix" {
				address = "unix://" + t.TempDir() + "/s"
			}
			listener, err := kvtransfer.Listen(address)
			if err != nil {
				t.Fatal(err)
			}
			if transport == "tcp" {
				address = listener.Addr().String()
			}
			service := bulk{begin: pool.reached, received: make(chan int, 1), failed: make(chan error, 1)}
			server := rpc.NewServer(cfg)
			server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil),
				Streams: []grpc.StreamDesc{{StreamName: "Bulk", ClientStreams: true, Handler: service.stream}}}, struct{}{})
			var tasks sync.WaitGroup
			tasks.Go(func() { _ = server.Serve(listener) })
			conn, err := rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
			if err != nil {
				t.Fatal(err)
			}
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/test/Bulk")
			if err != nil {
				t.Fatal(err)
			}
			layout := kvtransfertest.Layout(1, slice)
			message := &wire.Outbound{Pages: kvtransfertest.NewPages(layout, 1), Blocks: kvcache.BlockRange(0, 1),
				Chunk: wire.Chunk{Runs: []wire.Run{{Blocks: 1}}}}
			for range chunks {
				if err := stream.SendMsg(message); err != nil {
					t.Fatal(err)
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if n := <-service.received; n != chunks {
				t.Errorf("%d chunks of %d arrived: %v", n, chunks, <-service.failed)
			}
			_ = conn.Close()
			if err := server.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
			tasks.Wait()
			// Frames may be shorter than their buffers.
			if limit := (window + cfg.MaxReceiveBytes) * 5 / 4; pool.most > limit {
				t.Errorf("%d bytes were held at once, more than %d", pool.most, limit)
			}
			if pool.out != 0 {
				t.Errorf("%d bytes did not come back", pool.out)
			}
		})
	}
}

// Messages over the limit are refused before they are buffered.
func TestOversizeIsRefused(t *testing.T) {
	cfg := kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: 64 << 10})
	begin := make(chan struct{})
	close(begin)
	service := bulk{begin: begin, received: make(chan int, 1), failed: make(chan error, 1)}
	server := rpc.NewServer(cfg)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Bulk", ClientStreams: true, Handler: service.stream}}}, struct{}{})
	listener, err := kvtransfer.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(listener) })
	conn, err := rpc.Dial(listener.Addr().String(), kvtransfer.Dialing(rpc.ClientConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/test/Bulk")
	if err != nil {
		t.Fatal(err)
	}
	layout := kvtransfertest.Layout(1, 1<<20)
	if err := stream.SendMsg(&wire.Outbound{Pages: kvtransfertest.NewPages(layout, 1), Blocks: kvcache.BlockRange(0, 1),
		Chunk: wire.Chunk{Runs: []wire.Run{{Blocks: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if n := <-service.received; n != 0 {
		t.Errorf("%d chunks were taken", n)
	}
	if err := <-service.failed; err == nil {
		t.Error("the receiver was not told")
	}
	_ = conn.Close()
	if err := server.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	tasks.Wait()
}
