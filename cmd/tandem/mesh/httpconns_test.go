package mesh_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// One connection too many takes the place of an idle one, or is told why it cannot.
func TestHTTPConnectionsAreBounded(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-release
	}))
	server.Config.ConnState = mesh.HTTPConnections(2)
	server.Start()
	defer server.Close()
	connect := func(send string) net.Conn {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, send); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	const request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	idle := connect("")
	connect(request)
	<-begun
	connect(request) // in the place of the first
	<-begun
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("the idle connection was sent something")
	}
	said, err := io.ReadAll(connect(""))
	if err != nil || !strings.HasPrefix(string(said), "HTTP/1.1 503 ") || !strings.Contains(string(said), "--router-max-connections") {
		t.Errorf("the refused connection got %q, %v", said, err)
	}
	close(release)
}

// With TLS one connection too many is told nothing: who accepts would wait for its handshake.
func TestEncryptedConnectionsAreBounded(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-release
	}))
	server.Config.ConnState = mesh.HTTPConnections(1)
	server.StartTLS()
	defer server.Close()
	answered := make(chan error, 1)
	go func() {
		answer, err := server.Client().Get(server.URL)
		if err == nil {
			err = answer.Body.Close()
		}
		answered <- err
	}()
	<-begun
	for range 2 { // neither shakes hands
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if said, err := io.ReadAll(conn); len(said) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the refused connection got %q, %v", said, err)
		}
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// pipes is a listener of one connection in memory, which virtual time sees.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// A client that sends requests and never reads an answer loses its connection, whatever it asks for.
func TestClientThatNeverReads(t *testing.T) {
	for _, request := range []string{"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "nonsense\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			ready, _ := mesh.NewReadiness(nil)
			server := mesh.NewHTTPServer(ready, time.Minute)
			listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(listener) }()
			client, other := net.Pipe()
			listener.conns <- other
			if _, err := io.WriteString(client, request); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			if said, err := io.ReadAll(client); len(said) > 0 || err != nil {
				t.Errorf("%q: the connection is open, and has %q, %v", request, said, err)
			}
			close(listener.done)
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			<-ended
		})
	}
}
