package trywrite_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/trywrite"
)

// pair is the two ends of a connection.
func pair(t *testing.T, network, address string) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if near, err = net.Dial(network, listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return near, far
}

// To who reads nothing it writes until the kernel is full, and never waits: this ends only because
// it does not. What it says that it wrote arrives.
func TestWriteDoesNotWait(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		near, far := pair(t, network, address)
		w := trywrite.New(near)
		var want []byte
		for i := byte(0); ; i++ {
			p := bytes.Repeat([]byte{i}, 24<<10)
			n, err := w.Write(p)
			if err != nil {
				t.Fatal(err)
			}
			if want = append(want, p[:n]...); n < len(p) {
				break
			}
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v; equal: %t", network, err, bytes.Equal(got, want))
		}
		if n, err := w.Write([]byte("more")); n != 4 || err != nil {
			t.Errorf("%s: once it was read: %d, %v", network, n, err)
		}
	}
}

func TestWriteFails(t *testing.T) {
	near, _ := pair(t, "tcp", "127.0.0.1:0")
	w := trywrite.New(near)
	if err := near.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Write([]byte("late")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %d, %v", n, err)
	}
	_ = near.Close()
	if n, err := w.Write([]byte("closed")); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %d, %v", n, err)
	}

	near, far := pair(t, "unix", filepath.Join(t.TempDir(), "s"))
	_ = far.Close()
	var failed *net.OpError
	if n, err := trywrite.New(near).Write([]byte("gone")); n != 0 || !errors.As(err, &failed) {
		t.Errorf("the peer is gone: %d, %v", n, err)
	}

	inMemory, _ := net.Pipe()
	if trywrite.New(inMemory) != nil {
		t.Error("a connection that the operating system does not know has a Writer")
	}
}
