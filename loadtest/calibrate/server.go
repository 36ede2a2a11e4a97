package calibrate

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/internal/rawnet"
	"github.com/tandem-serving/tandem/loadtest/processor"
)

// served is the report of the fake server's process. Times are since Start, nanoseconds
// on the machine's monotonic clock.
type served struct {
	Start      int64
	CPUSeconds float64
	Log        []*fakeserver.Served
}

// Serve serves the plan's shape on a free loopback port and writes its address to out as
// a line. When in or ctx ends, it writes its log.
func Serve(ctx context.Context, p Plan, in io.Reader, out io.Writer) error {
	engine, err := fakeserver.NewEngine(p.shape(), true, nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	start := monotonic(engine.Start())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen on the loopback: %w", err)
	}
	server, err := newServer(p, engine)
	if err != nil {
		listener.Close()
		return err
	}
	var serving sync.WaitGroup
	failed := make(chan error, 1)
	serving.Go(func() { failed <- server.Serve(rawnet.Listener(listener)) })
	stop := func() {
		server.Stop()
		serving.Wait()
	}
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		stop()
		return err
	}
	ended := make(chan struct{})
	// If ctx ends first, this goroutine lives until the process ends.
	go func() {
		_, _ = io.Copy(io.Discard, in) // only the end matters
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	case err := <-failed:
		stop() // requests served so far
		return errors.Join(errors.New("the fake server stopped serving"), err)
	}
	used, _ := processor.CPUSeconds(os.Getpid()) // 0 if unknown
	stop()
	return gob.NewEncoder(out).Encode(served{start, used, engine.Log()})
}

// server is a fake server of some protocol.
type server interface {
	Serve(net.Listener) error
	Stop()
}

func newServer(p Plan, engine *fakeserver.Engine) (server, error) {
	if p.HTTP {
		return fakeserver.NewOpenAIServer(engine, fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM})
	}
	return fakeserver.NewServer(engine), nil
}

// monotonic converts a time to the machine's monotonic clock, which processes share.
func monotonic(at time.Time) int64 { return monotonicNow() - int64(time.Since(at)) }
