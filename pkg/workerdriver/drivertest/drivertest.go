// Package drivertest has what tests of prefill and decode workers share: a toy model and
// requests for it, steps that a test can hold, and a record of the worker's signals. It
// starts no goroutines.
package drivertest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// Spec is a toy model of three layers.
func Spec() model.Spec {
	return model.Spec{
		Name: "toy", Digest: "d1", VocabSize: 500, HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4,
		ContextTokens: 256, BOS: 1, EOS: []int32{2},
	}
}

// Prompt is n tokens of the toy model. Prompts of different seeds differ.
func Prompt(n, seed int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(10 + (i*7+seed*31)%400)
	}
	return tokens
}

// Task asks the toy model for up to maxTokens tokens after a prompt.
func Task(prompt []uint32, maxTokens uint32) *workerv1.Task {
	return &workerv1.Task{
		Envelope: &inferencev1.Envelope{RequestId: "r"}, Model: "toy", ModelDigest: "d1",
		TokenIds: prompt, MaxTokens: maxTokens, Sampling: &inferencev1.Sampling{},
	}
}

// WantError checks the code and the reason of an error.
func WantError(t *testing.T, what string, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || rpc.Reason(err) != reason {
		t.Errorf("%s: ended with %v (reason %q), want %v %q", what, err, rpc.Reason(err), code, reason)
	}
}

// WantIdle waits until a driver has no request, and checks that nothing is left of any.
// The test must be a bubble.
func WantIdle(t *testing.T, d *workerdriver.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Idle(ctx); err != nil {
		t.Fatalf("something is left: %v", err)
	}
	synctest.Wait()
	load, _ := d.Load()
	if load.BlocksFree != load.BlocksTotal || load.BlocksReserved+load.BlocksQuarantined+load.WaitingSequences+load.RunningSequences != 0 {
		t.Fatalf("something is left: %+v", load)
	}
}

// Signals is a workerdriver.Signals that adds up the events of the prefix cache.
type Signals struct {
	mu     sync.Mutex
	events uint64
	blocks map[uint64]bool
}

// NewSignals returns signals of an empty prefix cache.
func NewSignals() *Signals { return &Signals{blocks: map[uint64]bool{}} }

// Load implements workerdriver.Signals; it drops the report.
func (s *Signals) Load(*controlv1.LoadReport) {}

// Kv implements workerdriver.Signals.
func (s *Signals) Kv(_ trace.SpanContext, stored, removed []uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range stored {
		s.blocks[h] = true
	}
	for _, h := range removed {
		delete(s.blocks, h)
	}
	s.events++
	return s.events
}

// Blocks are the hashes that the prefix cache holds after the events so far.
func (s *Signals) Blocks() (hashes []uint64, events uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.blocks)), s.events
}

// Layers takes the time of a simulated engine's layers. The zero value waits for it.
type Layers struct {
	mu       sync.Mutex
	computed int
	hold     func(ctx context.Context, d time.Duration) error
}

// Wait is simulated.Config.Wait.
func (l *Layers) Wait(ctx context.Context, d time.Duration) error {
	l.mu.Lock()
	l.computed++
	hold := l.hold
	l.mu.Unlock()
	if hold != nil {
		return hold(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Hold replaces the wait of each layer of each step from now on; nil restores it.
func (l *Layers) Hold(hold func(ctx context.Context, d time.Duration) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = hold
}

// Computed counts layers, over all steps.
func (l *Layers) Computed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.computed
}
