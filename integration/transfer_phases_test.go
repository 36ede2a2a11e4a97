package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// phase is where a request is held while something happens to it.
type phase struct {
	name string
	// hold sees to it that the next request does not get past the phase. reached is
	// closed when it is there.
	hold func(g *rig) (reached <-chan struct{}, release func())
	// complete: it may have all its tokens, and only wait for the prefill worker's last
	// word.
	complete bool
}

// phases are those of a disaggregated request, in order.
func phases() []phase {
	return []phase{
		{name: "reserved", hold: holdMessage(faultstest.ToReceiver, "open", 1)},
		{name: "opened", hold: holdMessage(faultstest.ToSender, "accept", 1)},
		{name: "computing", hold: func(g *rig) (<-chan struct{}, func()) {
			gate := g.prefill.gate
			return gate.close(0), gate.open
		}},
		{name: "transferring", hold: holdMessage(faultstest.ToReceiver, "chunk", 6)},
		{name: "committing", hold: holdMessage(faultstest.ToReceiver, "commit", 1)},
		{name: "committed", hold: holdMessage(faultstest.ToSender, "committed", 1), complete: true},
		{name: "decoding", hold: func(g *rig) (<-chan struct{}, func()) {
			gate := g.decode.gate
			return gate.close(3), gate.open
		}},
	}
}

func holdMessage(d faultstest.Direction, kind string, n int) func(*rig) (<-chan struct{}, func()) {
	return func(g *rig) (<-chan struct{}, func()) {
		h := g.decode.proxy.Hold(d, kind, n)
		return h.Held(), h.Release
	}
}

// call is a request that runs.
type call struct {
	result clustertest.Result
	err    error
	cancel context.CancelFunc
	done   chan struct{}
}

func (g *rig) call(ctx context.Context, request *inferencev1.GenerateRequest) *call {
	c := &call{done: make(chan struct{})}
	ctx, c.cancel = context.WithCancel(ctx)
	client := g.client
	go func() {
		defer close(c.done)
		defer c.cancel()
		c.result, c.err = client.Generate(ctx, request)
	}()
	return c
}

// check checks how a call ended: with one of the codes, the tokens so far being the
// right ones, and all of them if it ended well.
func (c *call) check(t *testing.T, want []uint32, allowed ...codes.Code) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(timeout):
		t.Fatalf("the request has no end")
	}
	code := status.Code(c.err)
	if !slices.Contains(allowed, code) {
		t.Errorf("ended with %v, want %v", c.err, allowed)
	}
	if code == codes.Unavailable && rpc.Reason(c.err) == "" && len(allowed) > 1 {
		t.Errorf("ended without a reason: %v", c.err)
	}
	if n := len(c.result.Tokens); n > len(want) || !slices.Equal(c.result.Tokens, want[:n]) || c.err == nil && n != len(want) {
		t.Errorf("tokens %v, want %v", c.result.Tokens, want)
	}
}
