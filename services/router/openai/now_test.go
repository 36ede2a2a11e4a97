package openai_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// certificate is one that believe believes: that of httptest.
func certificate(t testing.TB) (server, believe *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"http/1.1"}}, &tls.Config{RootCAs: pool, ServerName: "example.com"}
}

// listenNow runs a server whose connections can be written to without waiting.
func listenNow(t testing.TB, h http.Handler, secure *tls.Config) (address string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := openai.Listen(inner)
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	server := &http.Server{Handler: h, ConnContext: openai.ConnContext}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return inner.Addr().String()
}

// serveNow sends such a server a request whose answer is a stream.
func serveNow(t *testing.T, h http.Handler, encrypted bool) *http.Response {
	t.Helper()
	transport, scheme := new(http.Transport), "http"
	var secure *tls.Config
	if encrypted {
		scheme = "https"
		secure, transport.TLSClientConfig = certificate(t)
	}
	address := listenNow(t, h, secure)
	t.Cleanup(transport.CloseIdleConnections)
	q, err := http.NewRequest(http.MethodPost, scheme+"://"+address+chats, strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	response, err := transport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// texts are what a stream's messages say, in order.
func texts(body string) (out []string) {
	for line := range strings.Lines(body) {
		if _, after, found := strings.Cut(line, `"delta":{"content":"`); found {
			text, _, _ := strings.Cut(after, `"`)
			out = append(out, text)
		}
	}
	return out
}

// encryptions are names of subtests: whether TLS is between server and client.
var encryptions = map[string]bool{"plain": false, "TLS": true}

// Tokens that are sent at once come as others do.
func TestTokensNow(t *testing.T) {
	for name, encrypted := range encryptions {
		t.Run(name, func(t *testing.T) {
			f := &fake{words: []string{"a", "b", "c", "d"}, now: make(chan struct{})}
			body, err := io.ReadAll(serveNow(t, handler(t, f), encrypted).Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := texts(string(body)); strings.Join(got, "") != "abcd" || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
				t.Errorf("%q", body)
			}
			if f.sentNow != 4 {
				t.Errorf("%d of 4 tokens were sent at once", f.sentNow)
			}
		})
	}
}

// What tokens that are sent at once look like on the wire is what net/http writes. A client of
// HTTP/1.0, which knows no chunks, gets none.
func TestTokensNowOnTheWire(t *testing.T) {
	for _, c := range []struct {
		version, path, body string
		atOnce              int
	}{
		{"1.0", chats, `{` + hi + `,"stream":true}`, 0},
		{"1.1", chats, `{` + hi + `,"stream":true}`, 4},
		{"1.1", responses, `{"input":"hi","stream":true}`, 4},
	} {
		answer := func(f *fake) string {
			f.words = []string{"a", "\"\n", strings.Repeat("word ", 1<<10), "d"}
			conn, err := net.Dial("tcp", listenNow(t, handler(t, f), nil))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/%s\r\nHost: x\r\nConnection: close\r\nX-Request-Id: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", c.path, c.version, len(c.body), c.body); err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(string(raw), "\r\n\r\n")
			return regexp.MustCompile(`"(created|created_at|completed_at)":\d+`).ReplaceAllString(rest, "")
		}
		now := &fake{now: make(chan struct{})}
		if got, want := answer(now), answer(new(fake)); got != want || !strings.HasSuffix(got, "0\r\n\r\n") && c.version == "1.1" {
			t.Errorf("HTTP/%s %s: %q, want %q", c.version, c.path, got, want)
		}
		if now.sentNow != c.atOnce {
			t.Errorf("HTTP/%s %s: %d tokens were sent at once", c.version, c.path, now.sentNow)
		}
	}
}

// A client that does not read blocks nobody, and gets all in order once it does.
func TestTokensNowUnread(t *testing.T) {
	for name, encrypted := range encryptions {
		t.Run(name, func(t *testing.T) {
			f := &fake{now: make(chan struct{})}
			for i := range 256 {
				f.words = append(f.words, fmt.Sprintf("%d", i)+strings.Repeat("x", 64<<10))
			}
			response := serveNow(t, handler(t, f), encrypted)
			<-f.now // a token did not go at once
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			got := texts(string(body))
			if len(got) != len(f.words) {
				t.Fatalf("%d of %d tokens came", len(got), len(f.words))
			}
			for i, text := range got {
				if text != f.words[i] {
					t.Fatalf("token %d is %.8q of %d bytes", i, text, len(text))
				}
			}
			if f.sentNow == 0 {
				t.Error("no token was sent at once")
			}
		})
	}
}

// A client that leaves ends its request.
func TestTokensNowClientLeaves(t *testing.T) {
	for name, encrypted := range encryptions {
		t.Run(name, func(t *testing.T) {
			f := &fake{now: make(chan struct{}), block: true}
			for range 256 {
				f.words = append(f.words, strings.Repeat("x", 64<<10))
			}
			response := serveNow(t, handler(t, f), encrypted)
			<-f.now
			_ = response.Body.Close() // the test ends when the request has
		})
	}
}
