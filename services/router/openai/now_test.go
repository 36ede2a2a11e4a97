package openai_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// listenNow runs a server whose connections can be written to without waiting.
func listenNow(t *testing.T, h http.Handler) (address string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ConnContext: openai.ConnContext}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(openai.Listen(inner)) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return inner.Addr().String()
}

// serveNow sends such a server a request whose answer is a stream.
func serveNow(t *testing.T, h http.Handler) *http.Response {
	t.Helper()
	address, transport := listenNow(t, h), new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	q, err := http.NewRequest(http.MethodPost, "http://"+address+chats, strings.NewReader(`{`+hi+`,"stream":true}`))
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

// Tokens that are sent at once come as others do.
func TestTokensNow(t *testing.T) {
	f := &fake{words: []string{"a", "b", "c", "d"}, now: make(chan struct{})}
	body, err := io.ReadAll(serveNow(t, handler(t, f)).Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(string(body)); strings.Join(got, "") != "abcd" || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("%q", body)
	}
	if f.sentNow != 4 {
		t.Errorf("%d of 4 tokens were sent at once", f.sentNow)
	}
}

// What tokens that are sent at once look like on the wire is what net/http writes. A client of
// HTTP/1.0, which knows no chunks, gets none.
func TestTokensNowOnTheWire(t *testing.T) {
	for version, atOnce := range map[string]int{"1.0": 0, "1.1": 4} {
		answer := func(f *fake) string {
			f.words = []string{"a", "\"\n", strings.Repeat("word ", 1<<10), "d"}
			conn, err := net.Dial("tcp", listenNow(t, handler(t, f)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			body := `{` + hi + `,"stream":true}`
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/%s\r\nHost: x\r\nConnection: close\r\nX-Request-Id: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chats, version, len(body), body); err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(string(raw), "\r\n\r\n")
			return regexp.MustCompile(`"created":\d+`).ReplaceAllString(rest, "")
		}
		now := &fake{now: make(chan struct{})}
		if got, want := answer(now), answer(new(fake)); got != want || !strings.Contains(got, "[DONE]") {
			t.Errorf("HTTP/%s: %q, want %q", version, got, want)
		}
		if now.sentNow != atOnce {
			t.Errorf("HTTP/%s: %d tokens were sent at once", version, now.sentNow)
		}
	}
}

// A client that does not read blocks nobody, and gets all in order once it does.
func TestTokensNowUnread(t *testing.T) {
	f := &fake{now: make(chan struct{})}
	for i := range 256 {
		f.words = append(f.words, fmt.Sprintf("%d", i)+strings.Repeat("x", 64<<10))
	}
	response := serveNow(t, handler(t, f))
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
}

// A client that leaves ends its request.
func TestTokensNowClientLeaves(t *testing.T) {
	f := &fake{now: make(chan struct{}), block: true}
	for range 256 {
		f.words = append(f.words, strings.Repeat("x", 64<<10))
	}
	response := serveNow(t, handler(t, f))
	<-f.now
	_ = response.Body.Close() // the test ends when the request has
}
