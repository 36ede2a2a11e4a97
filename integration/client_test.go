package integration_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// The module for other people's programs asks a real mesh.
func TestGoClient(t *testing.T) {
	m := clustertest.Start(t, nil)
	c := newClient(t, m.Up.Address)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()

	q := request("Once upon a time", 12, 0.8, disaggregated)
	q.Logprobs = proto.Uint32(2)
	want := generate(t, m.Client, q)
	got, err := client.Collect(c.Generate(ctx, q))
	if err != nil || !slices.Equal(got.TokenIDs, want.Tokens) || got.Text != want.Text || len(got.Logprobs) != len(got.TokenIDs) || got.Finished.GetUsage().GetCompletionTokens() != 12 || got.Finished.GetTimings().GetTtftNs() <= 0 {
		t.Errorf("%v: %v %q, want %v %q", err, got.TokenIDs, got.Text, want.Tokens, want.Text)
	}

	tokens, err := c.Tokenize(ctx, &inferencev1.TokenizeRequest{Text: "Once upon a time"})
	if err != nil {
		t.Fatal(err)
	}
	q.Input = client.TokenIDs(tokens.GetTokenIds()...).Input
	if got, err := client.Collect(c.Generate(ctx, q)); err != nil || !slices.Equal(got.TokenIDs, want.Tokens) {
		t.Errorf("%v: by token ids %v, want %v", err, got.TokenIDs, want.Tokens)
	}

	chat := client.Chat(client.System("Tell a story."), client.User("Of whom?"), client.Assistant("A king."), client.User("Go on."))
	chat.StructuredOutput, chat.MaxTokens = client.JSONSchema(heroSchema), proto.Uint32(200)
	got, err = client.Collect(c.Generate(ctx, chat))
	var h hero
	if err := json.Unmarshal([]byte(got.Text), &h); err != nil {
		t.Errorf("%q: %v", got.Text, err)
	}
	if h.check(t); err != nil {
		t.Error(err)
	}

	long := request("Once upon a time", 1500, 0, aggregated)
	long.IgnoreEos = true
	for token, err := range c.Generate(ctx, long) {
		if err != nil {
			t.Fatal(err)
		}
		if token.Offset == 3 {
			break
		}
	}
	m.AwaitIdle(t) // long before it has its tokens
}

// A connection is cut in the middle of a stream. The answer goes on: the same request if it can
// be resumed, else the same tokens.
func TestGoClientLosesItsConnection(t *testing.T) {
	m := clustertest.Start(t, nil)
	for _, resumable := range []time.Duration{0, time.Minute} {
		w := relay(t, m.Up.Address)
		c := newClient(t, w.address)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		q := request("Once upon a time", 400, 0.8, aggregated)
		q.IgnoreEos = true
		want := generate(t, m.Client, q)
		q.ResumableFor = durationpb.New(resumable)
		var ids []uint32
		var text string
		var requests []string
		for token, err := range c.Generate(ctx, q) {
			if err != nil {
				t.Fatalf("after %d tokens: %v", len(ids), err)
			}
			if text += token.Text; token.Finished != nil {
				break
			}
			if ids = append(ids, token.ID); len(ids) == 3 {
				w.cut()
			}
			if id := token.Accepted.GetRequestId(); !slices.Contains(requests, id) {
				requests = append(requests, id)
			}
		}
		cancel()
		if !slices.Equal(ids, want.Tokens) || text != want.Text {
			t.Errorf("%d tokens and %q, want %d and %q", len(ids), text, len(want.Tokens), want.Text)
		}
		if resumed := len(requests) == 1; resumed != (resumable > 0) {
			t.Errorf("resumable for %v: the answer came from the requests %v", resumable, requests)
		}
		m.AwaitIdle(t)
	}
}

func newClient(t *testing.T, addresses ...string) *client.Client {
	t.Helper()
	c, err := client.New(addresses)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wire is a way to an address that can be cut.
type wire struct {
	address string
	mu      sync.Mutex
	conns   []net.Conn
}

// relay begins a wire, for the rest of the test.
func relay(t *testing.T, to string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String()}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				wait.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		w.cut()
		wait.Wait()
	})
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}
