package openai_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/serving"
)

// streaming sends a token over and over, at once.
type streaming struct {
	*fake
	tokens int
	begin  func()
}

func (s *streaming) Generate(_ context.Context, from *serving.Caller, _ *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	if err := send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{RequestId: "id", Model: "real"}}}); err != nil {
		return err
	}
	token := &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{TokenIds: []uint32{7}, Text: " word"}}}
	s.begin()
	for sent := 0; sent < s.tokens; {
		if from.Now(token) {
			sent++
			continue
		}
		if err := send(token); err != nil {
			return err
		}
		sent++
		runtime.Gosched()
	}
	return send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{Usage: &inferencev1.Usage{}}}})
}

// BenchmarkTokenNow is what a token of a stream takes from its event to the socket. Its client reads
// bytes, and decrypts nothing.
func BenchmarkTokenNow(b *testing.B) {
	for name, encrypted := range encryptions {
		b.Run(name, func(b *testing.B) {
			var secure, believe *tls.Config
			if encrypted {
				secure, believe = certificate(b)
			}
			raw, err := net.Dial("tcp", listenNow(b, handler(b, &streaming{fake: &fake{}, tokens: b.N, begin: b.ResetTimer}), secure))
			if err != nil {
				b.Fatal(err)
			}
			defer raw.Close()
			conn := raw
			if encrypted {
				conn = tls.Client(raw, believe)
			}
			b.ReportAllocs()
			body := `{` + hi + `,"stream":true}`
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", chats, len(body), body); err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{raw}, make([]byte, 1<<18)); err != nil {
				b.Fatal(err)
			}
		})
	}
}
