package openai_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// serveNow runs a server whose connections can be written to without waiting, and sends it a
// request whose answer is a stream.
func serveNow(t *testing.T, h http.Handler) *http.Response {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ConnContext: openai.ConnContext}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(openai.Listen(inner)) }()
	transport := new(http.Transport)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	q, err := http.NewRequest(http.MethodPost, "http://"+inner.Addr().String()+chats, strings.NewReader(`{`+hi+`,"stream":true}`))
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
