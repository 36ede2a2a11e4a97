package rawnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/internal/rawnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connected are the two ends of a connection.
func connected(t *testing.T, network, address, prefix string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := rawnet.Listener(l).Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
	}()
	client, err = rawnet.Dial(t.Context(), prefix+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestBytesGoThrough(t *testing.T) {
	for _, c := range [][3]string{{"tcp", "127.0.0.1:0", ""}, {"unix", filepath.Join(t.TempDir(), "s"), "unix://"}} {
		client, server := connected(t, c[0], c[1], c[2])
		// More than any socket buffer, so that the writer must wait.
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
		done := make(chan error, 1)
		go func() {
			n, err := client.Write(sent)
			if err == nil && n != len(sent) {
				err = io.ErrShortWrite
			}
			done <- errors.Join(err, client.Close())
		}()
		got, err := io.ReadAll(server)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d of %d bytes, %v", c[0], len(got), len(sent), err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", c[0], err)
		}
	}
}

func TestEndsAndDeadlines(t *testing.T) {
	client, server := connected(t, "tcp", "127.0.0.1:0", "")
	if n, err := client.Read(nil); n != 0 || err != nil {
		t.Errorf("nothing read: %d, %v", n, err)
	}
	if err := client.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	server.Close()
	if err := client.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	client.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestDialFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := rawnet.Dial(ctx, "127.0.0.1:1"); err == nil {
		t.Error("connected with a context that has ended")
	}
	if _, err := rawnet.Dial(t.Context(), "unix:///nowhere/s"); err == nil {
		t.Error("connected to nowhere")
	}
}

// What is no socket stays what it is.
func TestOtherConnections(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if rawnet.Conn(a) != a {
		t.Error("a pipe was wrapped")
	}
}
