package workerdriver_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// counting is an engine that counts the tokens that it computes.
type counting struct {
	engine.Engine
	tokens, cut int
}

func (c *counting) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	out, err := c.Engine.Step(ctx, batch)
	for _, s := range batch.Sequences {
		c.tokens += len(s.Tokens)
	}
	c.tokens -= out.Cut
	c.cut += out.Cut
	return out, err
}

// drafting runs a worker with so many drafts, and a model of few tokens, of which many stood
// somewhere before. It returns what it generated for three requests, and its metrics.
func drafting(t *testing.T, maxDrafts int) (outputs [][]int32, drafts int, metrics *prometheus.Registry) {
	t.Helper()
	var requests []scheduler.Request
	for i := range 3 {
		requests = append(requests, scheduler.Request{Tokens: []int32{3, 4, 5, 3, 4}, MaxTokens: 80, Sampling: sampler.Params{Temperature: 1, Seed: uint64(i)}})
	}
	outputs, drafts, _, metrics = draftingFor(t, maxDrafts, 6, requests)
	return outputs, drafts, metrics
}

// draftingFor is drafting of other requests, with a model of so many tokens.
func draftingFor(t *testing.T, maxDrafts, tokens int, requests []scheduler.Request) (outputs [][]int32, drafts, accepted int, metrics *prometheus.Registry) {
	t.Helper()
	few := spec()
	few.VocabSize = tokens
	e, err := simulated.New(simulated.Config{
		Spec: few, Blocks: 200, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: 8, StepTime: latency.Model{BaseMs: 5, PerTokenMs: 0.01},
	})
	if err != nil {
		t.Fatal(err)
	}
	counts := &counting{Engine: e}
	metrics = prometheus.NewRegistry()
	cfg := memberConfig(controlv1.Role_ROLE_DECODE, counts)
	cfg.Registerer, cfg.MaxDrafts = metrics, maxDrafts
	m, err := workerdriver.NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	var sequences []*workerdriver.Sequence
	for _, request := range requests {
		request.ID = m.Driver().Reserve()
		sequences = append(sequences, m.Driver().Submit(request))
	}
	for _, s := range sequences {
		var r result
		r.read(t, s, false)
		outputs = append(outputs, r.tokens)
		if r.finished.Err != nil {
			t.Errorf("%v: %v", r.tokens, r.finished.Err)
		}
		drafts, accepted = drafts+r.finished.Drafts, accepted+r.finished.AcceptedDrafts
	}
	cancel()
	<-done
	text := fmt.Sprintf("# HELP tandem_worker_step_tokens_total Tokens that the engine computed, of prompts and in decode.\n# TYPE tandem_worker_step_tokens_total counter\ntandem_worker_step_tokens_total{worker=\"w1\"} %d\n", counts.tokens)
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(text), "tandem_worker_step_tokens_total"); err != nil {
		t.Errorf("with %d drafts cut: %v", counts.cut, err)
	}
	return outputs, drafts, accepted, metrics
}

// TestDrafts: an engine's answers about drafts get to the scheduler, what is generated is the same as
// without them, and they are counted.
func TestDrafts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want, none, _ := drafting(t, 0)
		got, drafts, metrics := drafting(t, 3)
		if !slices.EqualFunc(got, want, slices.Equal[[]int32]) || len(got[0]) != 80 {
			t.Errorf("with drafts %v, without %v", got, want)
		}
		if none != 0 || drafts < 20 {
			t.Errorf("%d drafts, and %d where there may be none", drafts, none)
		}
		text := fmt.Sprintf("# HELP tandem_worker_draft_tokens_total Draft tokens (speculative decoding) that the engine verified, or that an output constraint does not allow.\n# TYPE tandem_worker_draft_tokens_total counter\ntandem_worker_draft_tokens_total{worker=\"w1\"} %d\n", drafts)
		if err := testutil.GatherAndCompare(metrics, strings.NewReader(text), "tandem_worker_draft_tokens_total"); err != nil {
			t.Error(err)
		}
	})
}

// reading is an engine whose draft model drafts for 2 ms in each step, after it has read for a while.
type reading struct {
	engine.Engine
	reads time.Duration
}

func (r reading) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	out, err := r.Engine.Step(ctx, batch)
	out.Drafting, out.Reading = 2*time.Millisecond+r.reads, r.reads
	return out, err
}

// TestStepTimesWithoutReading: routers do not take a worker for slow because its draft model reads
// prompts now and then.
func TestStepTimesWithoutReading(t *testing.T) {
	times := func(reads time.Duration) (ms float64) {
		synctest.Test(t, func(t *testing.T) {
			m, published := start(t, reading{newEngine(t, latency.Model{BaseMs: 10}), reads}, controlv1.Role_ROLE_DECODE, nil)
			var r result
			r.read(t, m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 40}), false)
			time.Sleep(time.Minute) // in the bubble: the last report has all steps
			published.mu.Lock()
			defer published.mu.Unlock()
			last := published.reports[len(published.reports)-1].GetStepTime()
			if last.GetSamples() < 40 {
				t.Fatalf("%v", last)
			}
			ms = last.GetBaseMs()
		})
		return ms
	}
	if none, long := times(0), times(300*time.Millisecond); none != long || none < 11 || none > 13 {
		t.Errorf("steps take %v ms, and %v ms where the draft model reads: want 12 both times", none, long)
	}
}

// TestDraftsThatNobodyVerifies: a worker does not begin to draft for an engine that cannot.
func TestDraftsThatNobodyVerifies(t *testing.T) {
	unknown := (latency.Model{BaseMs: 1}).Profile()
	unknown.Verify = nil // what drafts cost
	e, err := simulated.New(simulated.Config{
		Spec: spec(), Blocks: 40, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: 8, Profile: unknown,
		Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = workerdriver.NewDriver(workerdriver.Config{Engine: e, Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: 4}, MaxDrafts: 3, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "verifies at most 0") {
		t.Errorf("error %v", err)
	}
}
