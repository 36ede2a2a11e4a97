package openai_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// full is a connection whose writes wait, once it is on, as if the client did not read.
type full struct {
	net.Conn
	on      atomic.Bool
	entered chan struct{}
	leave   chan struct{}
}

func (f *full) Write(p []byte) (int, error) {
	if f.on.Load() {
		f.entered <- struct{}{}
		<-f.leave
	}
	return f.Conn.Write(p)
}

// clientOverTLS is the server's end of a connection, how it is encrypted, and all that its client received
// once the connection is closed.
func clientOverTLS(t *testing.T) (system net.Conn, secure *tls.Config, received <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	secure, believe := certificate(t)
	all := make(chan string, 1)
	go func() {
		defer close(all)
		client, err := tls.Dial("tcp", listener.Addr().String(), believe)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = client.Close() }()
		text, err := io.ReadAll(client)
		if err != nil {
			t.Error(err)
		}
		all <- string(text)
	}()
	if system, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return system, secure, all
}

// What an answer has kept that then failed does not come with the next one on its connection.
func TestNextAnswerHasNothingOfOneThatFailed(t *testing.T) {
	system, secure, received := clientOverTLS(t)
	c, encrypted := openai.NewConn(system, system, secure)
	if err := encrypted.Handshake(); err != nil {
		t.Fatal(err)
	}
	c.Lock() // as another write of TLS does
	if c.SendNow("of the one before") != nil || !c.Kept() {
		t.Error("a token is not kept")
	}
	c.Unlock()
	q := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(`{"prompt":"x","stream":true}`))
	f := &fake{words: []string{"a"}, now: make(chan struct{})}
	handler(t, f).ServeHTTP(httptest.NewRecorder(), q.WithContext(c.Context(q.Context())))
	_ = encrypted.Close()
	if got := <-received; strings.Contains(got, "before") || !strings.Contains(got, `"text":"a"`) {
		t.Errorf("received %q", got)
	}
}

// TLS writes from the goroutine that reads, too: it answers updates of keys. While that waits for the
// client, nothing else of sendNow does.
func TestTokensNowBesideAnotherWriteOfTLS(t *testing.T) {
	for _, after := range []bool{false, true} { // the token was sent
		system, secure, received := clientOverTLS(t)
		waiting := &full{Conn: system, entered: make(chan struct{}), leave: make(chan struct{})}
		c, encrypted := openai.NewConn(system, waiting, secure)
		if err := encrypted.Handshake(); err != nil {
			t.Fatal(err)
		}
		waiting.on.Store(true)
		if after {
			if c.SendNow("token") != nil {
				t.Error("a token is not sent")
			}
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if _, err := encrypted.Write([]byte("other ")); err != nil {
				t.Error(err)
			}
		}()
		<-waiting.entered
		if !after {
			for range 2 { // chunks of a token
				if c.SendNow("token") != nil {
					t.Error("a token is not sent")
				}
			}
		}
		if !c.Kept() {
			t.Error("all is said to be sent")
		}
		waiting.on.Store(false)
		close(waiting.leave)
		<-ended
		for c.Kept() {
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		_ = encrypted.Close()
		want := "other 5\r\ntoken\r\n5\r\ntoken\r\n"
		if after {
			want = "5\r\ntoken\r\nother "
		}
		if got := <-received; got != want {
			t.Errorf("received %q, want %q", got, want)
		}
	}
}
