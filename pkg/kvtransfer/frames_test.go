package kvtransfer_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// A sender that splits its window into small frames makes its receiver hold at most twice
// the bytes.
func TestSmallFrames(t *testing.T) {
	for _, frame := range []int{1025, 2049, 4097, 8193, 16 << 10} {
		t.Run(fmt.Sprintf("%d bytes", frame), func(t *testing.T) {
			cfg := kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: 1 << 20})
			window := int(cfg.WindowBytes)
			frames := window / frame
			pool := &countingPool{BufferPool: cfg.BufferPool, mark: frames * frame, reached: make(chan struct{})}
			cfg.BufferPool = pool
			listener, err := kvtransfer.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			begin := make(chan struct{})
			service := bulk{begin: begin, received: make(chan int, 1), failed: make(chan error, 1)}
			server := rpc.NewServer(cfg)
			server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil),
				Streams: []grpc.StreamDesc{{StreamName: "Bulk", ClientStreams: true, Handler: service.stream}}}, struct{}{})
			var tasks sync.WaitGroup
			tasks.Go(func() { _ = server.Serve(listener) })
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			framer := openBulk(t, conn)
			body := make([]byte, frame)
			for range frames {
				if err := framer.WriteData(1, false, body); err != nil {
					t.Fatal(err)
				}
			}
			<-pool.reached
			_ = conn.Close()
			close(begin)
			stopping, cancel := context.WithCancel(context.Background())
			cancel()
			_ = server.Stop(stopping) // its stream did not end cleanly
			tasks.Wait()
			if limit := 2*window + cfg.MaxReceiveBytes; pool.most > limit {
				t.Errorf("%d bytes were held of %d that were sent, more than %d", pool.most, frames*frame, limit)
			}
		})
	}
}

// openBulk begins stream 1 by hand for the test's frames.
func openBulk(t *testing.T, conn net.Conn) *http2.Framer {
	t.Helper()
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/test/Bulk"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	return framer
}
