package rpc_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// callers is a listener fed by a channel.
type callers chan net.Conn

func (c callers) Accept() (net.Conn, error) {
	if conn, ok := <-c; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (c callers) Close() error { close(c); return nil }
func (callers) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// call connects and reports whether the other side closed at once.
func (c callers) call() (refused bool) {
	conn, other := net.Pipe()
	c <- other
	synctest.Wait()
	_ = conn.SetReadDeadline(time.Now()) // if it fails, Read returns the reason
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// The limit holds over all listeners. Each close makes room for one connection.
func TestConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		limit := rpc.NewConnectionLimit(3, "--some-flag", slog.New(slog.NewTextHandler(&said, nil)))
		accepted := make(chan net.Conn, 10)
		tcp, unix := make(callers), make(callers)
		limited := []net.Listener{limit.Listener(tcp), limit.Listener(unix)}
		defer func() {
			for _, l := range limited {
				_ = l.Close()
			}
		}()
		for _, l := range limited {
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- c
				}
			}()
		}
		for i, l := range []callers{tcp, unix, tcp, unix, tcp} {
			if refused := l.call(); refused != (i >= 3) {
				t.Errorf("connection %d: refused %v", i, refused)
			}
		}
		gone := <-accepted
		_ = gone.Close()
		_ = gone.Close() // makes room only once
		for i, l := range []callers{unix, tcp} {
			if refused := l.call(); refused != (i > 0) {
				t.Errorf("after one has left, connection %d: refused %v", i, refused)
			}
		}
		if n := strings.Count(said.String(), "refused"); n == 0 || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("of three refusals within a minute it says: %s", &said)
		}
		time.Sleep(time.Minute)
		if refused := tcp.call(); !refused || strings.Count(said.String(), "\n") != 2 || !strings.Contains(said.String(), "refused=3") {
			t.Errorf("after a minute it says: %s", &said)
		}
		for len(accepted) > 0 {
			_ = (<-accepted).Close()
		}
	})
}
