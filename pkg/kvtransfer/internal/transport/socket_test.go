package transport_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// join returns the two ends of a connection.
func join(t *testing.T, network string) (dialled, accepted net.Conn) {
	t.Helper()
	listen, prefix := "127.0.0.1:0", ""
	if network == "unix" {
		listen, prefix = filepath.Join(t.TempDir(), "s"), "unix://"
	}
	inner, err := net.Listen(network, listen)
	if err != nil {
		t.Fatal(err)
	}
	l := transport.Listen(inner)
	t.Cleanup(func() { _ = l.Close() })
	dialled, err = transport.Dial(t.Context(), prefix+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialled.Close() })
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return dialled, accepted
}

// Bytes arrive unchanged, whatever the sizes of writes and reads.
func TestReads(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			text := make([]byte, 3<<20)
			for i := range text {
				text[i] = byte(random.Uint32())
			}
			dialled, accepted := join(t, network)
			wrote := make(chan error, 1)
			go func() {
				random := rand.New(rand.NewPCG(3, 4))
				for rest := text; len(rest) > 0; {
					n := min(1+random.IntN(1<<random.IntN(18)), len(rest))
					if _, err := dialled.Write(rest[:n]); err != nil {
						wrote <- err
						return
					}
					rest = rest[n:]
				}
				wrote <- dialled.Close()
			}()
			var got []byte
			var err error
			for err == nil {
				p := make([]byte, random.IntN(1<<random.IntN(16)))
				var n int
				if n, err = accepted.Read(p); n < 0 || n > len(p) {
					t.Fatalf("read %d bytes into %d", n, len(p))
				}
				got = append(got, p[:n]...)
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("the end is %v", err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if !bytes.Equal(got, text) {
				t.Errorf("read %d other bytes than the %d written", len(got), len(text))
			}
		})
	}
}

// A read ends at its deadline, or when either end closes.
func TestReadsEnd(t *testing.T) {
	p := make([]byte, 20_000)
	_, accepted := join(t, "tcp")
	if err := accepted.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its deadline: %v", err)
	}
	_, accepted = join(t, "tcp")
	read := make(chan error, 1)
	go func() {
		_, err := accepted.Read(p)
		read <- err
	}()
	_ = accepted.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
	dialled, accepted := join(t, "tcp")
	if err := dialled.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = dialled.Close()
	if n, err := accepted.Read(p); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("of a connection that was reset: %d bytes, %v", n, err)
	}
}

func TestDialFails(t *testing.T) {
	if c, err := transport.Dial(t.Context(), "unix://"+filepath.Join(t.TempDir(), "none")); err == nil {
		_ = c.Close()
		t.Error("connected to nothing")
	}
}

func TestReadAllocations(t *testing.T) {
	dialled, accepted := join(t, "tcp")
	p := make([]byte, 16<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := dialled.Write(p[:9]); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(accepted, p[:9]); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%g allocations", n)
	}
}
