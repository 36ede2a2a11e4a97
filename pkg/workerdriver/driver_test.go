package workerdriver_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

func spec() model.Spec {
	return model.Spec{Name: "toy", Digest: "d1", VocabSize: 500, HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, ContextTokens: 256, BOS: 1, EOS: []int32{2}}
}

func newEngine(t *testing.T, step latency.Model) engine.Engine {
	t.Helper()
	e, err := simulated.New(simulated.Config{Spec: spec(), Blocks: 40, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: 8, StepTime: step})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// recorder keeps what a worker publishes.
type recorder struct {
	mu      sync.Mutex
	reports []*controlv1.LoadReport
	at      []time.Time
	stored  []uint64
	removed []uint64
	events  uint64
}

func (r *recorder) Load(report *controlv1.LoadReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports, r.at = append(r.reports, report), append(r.at, time.Now())
}

func (r *recorder) Kv(_ trace.SpanContext, stored, removed []uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored, r.removed = append(r.stored, stored...), append(r.removed, removed...)
	r.events++
	return r.events
}

// memberConfig is that of a worker of whose signals, log and metrics nobody hears.
func memberConfig(role controlv1.Role, e engine.Engine) workerdriver.MemberConfig {
	return workerdriver.MemberConfig{
		Deps: workerdriver.Deps{
			Identity: membership.Identity{ID: "w1", Epoch: 7, Role: role}, Engine: e, Signals: new(recorder),
			Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		},
		Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: 4},
	}
}

// start runs a member for the rest of the test; the test must be a bubble.
func start(t *testing.T, e engine.Engine, role controlv1.Role, layerDone func(scheduler.RunStep, int)) (*workerdriver.Member, *recorder) {
	t.Helper()
	published := new(recorder)
	cfg := memberConfig(role, e)
	cfg.Signals, cfg.LayerDone = published, layerDone
	m, err := workerdriver.NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return m, published
}

// result is what became of a sequence.
type result struct {
	tokens   []int32
	started  *scheduler.Started
	reserved *scheduler.Reserved
	finished *scheduler.Finished
	refused  *scheduler.Refused
}

// read follows a sequence until its end, or until it has its blocks.
func (r *result) read(t *testing.T, s *workerdriver.Sequence, untilReserved bool) {
	t.Helper()
	for {
		select {
		case <-s.Ready():
		case <-time.After(time.Hour):
			t.Fatal("the sequence hangs")
		}
		for _, action := range s.Take() {
			switch a := action.(type) {
			case scheduler.Started:
				r.started = &a
			case scheduler.Reserved:
				r.reserved = &a
			case *scheduler.Sampled:
				if a.Offset != len(r.tokens) && r.tokens != nil {
					t.Fatalf("token with offset %d after %d tokens", a.Offset, len(r.tokens))
				}
				r.tokens = append(r.tokens, a.Token)
			case scheduler.Finished:
				r.finished = &a
			case scheduler.Refused:
				r.refused = &a
			}
		}
		if r.finished != nil || r.refused != nil || (untilReserved && r.reserved != nil) {
			return
		}
	}
}

func prompt(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(10 + i*7%300)
	}
	return tokens
}

func idle(t *testing.T, m *workerdriver.Member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.Driver().Idle(ctx); err != nil {
		t.Fatal(err)
	}
	if load, _ := m.Driver().Load(); load.BlocksFree != load.BlocksTotal {
		t.Fatalf("%d of %d blocks are free", load.BlocksFree, load.BlocksTotal)
	}
}

var hot = sampler.Params{Temperature: 1, Seed: 3}

func TestSameTokensOnOneWorkerAndOnTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := latency.Model{BaseMs: 1}
		whole, _ := start(t, newEngine(t, step), controlv1.Role_ROLE_DECODE, nil)
		first, _ := start(t, newEngine(t, step), controlv1.Role_ROLE_PREFILL, nil)

		receiving := newEngine(t, step)
		second, _ := start(t, receiving, controlv1.Role_ROLE_DECODE, nil)
		for _, n := range []int{1, 4, 5, 37, 100} {
			var alone, one, two result
			request := scheduler.Request{Tokens: prompt(n), MaxTokens: 20, Sampling: hot}

			request.ID = whole.Driver().Reserve()
			alone.read(t, whole.Driver().Submit(request), false)

			decode := request
			decode.Kind, decode.ID = scheduler.Receive, second.Driver().Reserve()
			waiting := second.Driver().Submit(decode)
			two.read(t, waiting, true)

			prefill := request
			prefill.Kind, prefill.ID = scheduler.PrefillOnly, first.Driver().Reserve()
			one.read(t, first.Driver().Submit(prefill), false)
			if one.finished.Reason != scheduler.PrefillDone {
				t.Fatalf("prefill ended with %v", one.finished.Reason)
			}
			copyPages(t, first, one.started.Blocks, receiving, two.reserved.Blocks, two.reserved.CachedTokens/4, (n+3)/4)
			first.Driver().TransferDone(prefill.ID)
			second.Driver().KVArrived(scheduler.KVArrived{ID: decode.ID, Sampled: one.tokens})
			two.tokens = one.tokens
			two.read(t, waiting, false)

			if !slices.Equal(alone.tokens, two.tokens) {
				t.Errorf("prompt of %d: two workers give %v, one gives %v", n, two.tokens, alone.tokens)
			}
		}
		idle(t, whole)
		idle(t, first)
		idle(t, second)
	})
}

// copyPages does what a transfer does.
func copyPages(t *testing.T, from *workerdriver.Member, table []kvcache.BlockID, to engine.Engine, into []kvcache.BlockID, held, blocks int) {
	t.Helper()
	source := from.Driver().Pages()
	for layer := range to.Pages().Layout().Layers {
		for b := held; b < blocks; b++ {
			copy(to.Pages().View(layer, into[b]), source.View(layer, table[b]))
		}
	}
}

func TestCancelInEveryPhaseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		for after := time.Duration(0); after < 100*time.Millisecond; after += 3 * time.Millisecond {
			for _, kind := range []scheduler.Kind{scheduler.Full, scheduler.PrefillOnly, scheduler.Receive} {
				request := scheduler.Request{ID: m.Driver().Reserve(), Kind: kind, Tokens: prompt(40), MaxTokens: 5, Sampling: hot}
				s := m.Driver().Submit(request)
				time.Sleep(after)
				s.Cancel()
				s.Cancel()
				var r result
				r.read(t, s, false)
				if kind != scheduler.Full {
					m.Driver().TransferDone(request.ID)
				}
			}
		}
		idle(t, m)
	})
}

// A sequence of nobody's task hears how likely its prompt is, as one of a task does.
func TestPromptIsScored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 1}), controlv1.Role_ROLE_DECODE, nil)
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 1, PromptLogprobs: true, TopPromptLogprobs: 2})
		scored := 0
		for ended := false; !ended; {
			select {
			case <-s.Ready():
			case <-time.After(time.Hour):
				t.Fatal("the sequence hangs")
			}
			for _, action := range s.Take() {
				switch a := action.(type) {
				case scheduler.PromptScored:
					scored += len(a.Logprobs)
				case scheduler.Finished, scheduler.Refused:
					ended = true
				}
			}
		}
		if scored != 8 {
			t.Errorf("%d tokens of 9 are scored, want all but the first", scored)
		}
		idle(t, m)
	})
}

func TestDrainFinishesWhatRunsAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		var running, late result
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 30})
		done := make(chan struct{})
		go func() { defer close(done); m.Drain(t.Context(), time.Second) }()
		synctest.Wait()
		late.read(t, m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(3), MaxTokens: 3}), false)
		if late.refused == nil || late.refused.Reason != scheduler.Draining {
			t.Errorf("a request during the drain ended with %+v", late)
		}
		running.read(t, s, false)
		if len(running.tokens) != 30 {
			t.Errorf("the running sequence got %d tokens of 30", len(running.tokens))
		}
		<-done
		idle(t, m)
	})
}

func TestDrainCutsWhatOutlastsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 100}), controlv1.Role_ROLE_DECODE, nil)
		var r result
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 100})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m.Drain(ctx, time.Second)
		r.read(t, s, false)
		if r.finished.Reason != scheduler.Cancelled {
			t.Errorf("ended with %v", r.finished.Reason)
		}
		idle(t, m)
	})
}

func TestReportsOnChangeAndEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, published := start(t, newEngine(t, latency.Model{BaseMs: 50}), controlv1.Role_ROLE_DECODE, nil)
		time.Sleep(10 * time.Second)
		published.mu.Lock()
		quiet := len(published.reports)
		published.mu.Unlock()
		if quiet < 10 || quiet > 12 {
			t.Errorf("%d reports in ten quiet seconds", quiet)
		}
		var r result
		r.read(t, m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(50), MaxTokens: 10}), false)
		time.Sleep(100 * time.Millisecond)
		published.mu.Lock()
		defer published.mu.Unlock()
		busy := slices.ContainsFunc(published.reports, func(l *controlv1.LoadReport) bool { return l.GetRunningSequences() == 1 })
		last := published.reports[len(published.reports)-1]
		if !busy || last.GetRunningSequences() != 0 || last.GetStepTime().GetSamples() == 0 {
			t.Errorf("reports missed the sequence: busy %v, last %v", busy, last)
		}
		for i := 1; i < len(published.at); i++ {
			if gap := published.at[i].Sub(published.at[i-1]); gap < 20*time.Millisecond {
				t.Errorf("reports %v apart", gap)
			}
		}
		if hashes, event := m.Driver().Snapshot(); len(hashes) == 0 || event != published.events || len(hashes) != len(published.stored) {
			t.Errorf("snapshot of %d blocks at event %d, published %d at %d", len(hashes), event, len(published.stored), published.events)
		}
	})
}

func TestLayerDoneSeesEveryPromptBlockOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := make(map[[2]int]int)
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 1}), controlv1.Role_ROLE_PREFILL, func(run scheduler.RunStep, layer int) {
			mu.Lock()
			defer mu.Unlock()
			for _, part := range run.Parts {
				for b := part.FirstBlock; b < part.FirstBlock+part.Blocks; b++ {
					seen[[2]int{layer, b}]++
				}
			}
		})
		request := scheduler.Request{ID: m.Driver().Reserve(), Kind: scheduler.PrefillOnly, Tokens: prompt(39), MaxTokens: 5}
		var r result
		r.read(t, m.Driver().Submit(request), false)
		m.Driver().TransferDone(request.ID)
		idle(t, m)
		mu.Lock()
		defer mu.Unlock()
		for layer := range 3 {
			for b := range 10 {
				if seen[[2]int{layer, b}] != 1 {
					t.Errorf("layer %d of block %d was completed %d times", layer, b, seen[[2]int{layer, b}])
				}
			}
		}
		if len(seen) != 30 {
			t.Errorf("%d slices were completed, there are 30", len(seen))
		}
	})
}
