package workerdriver_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// ill is the first token of prompts that an ill engine has no finite logits for.
const ill = 499

// spoiling is an engine whose arithmetic, or memory, fails.
type spoiling struct {
	*simulated.Engine
	// spoil, if set, is a layer whose KV of the next step's first sequence becomes no
	// number before that; -1: none.
	spoil atomic.Int32
}

func newSpoiling(t *testing.T) *spoiling { return newSpoilingThatTakes(t, 10) }

func newSpoilingThatTakes(t *testing.T, stepMs float64) *spoiling {
	t.Helper()
	e := &spoiling{Engine: newEngine(t, latency.Model{BaseMs: stepMs}).(*simulated.Engine)}
	e.spoil.Store(-1)
	return e
}

func (e *spoiling) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	if layer := e.spoil.Swap(-1); layer >= 0 {
		ones := bytes.Repeat([]byte{0xff}, e.Pages().Layout().SliceBytes)
		if err := e.Pages().Write(int(layer), batch.Sequences[0].Blocks[:1], ones); err != nil {
			return engine.Output{}, err
		}
	}
	out, err := e.Engine.Step(ctx, batch)
	for i, s := range batch.Sequences {
		if s.Sample != nil && s.Sample.History.Prompt[0] == ill {
			out.Tokens[i] = sampler.None
		}
	}
	return out, err
}

// notFinite submits a prompt, of a kind, that ends with a NotFiniteError.
func notFinite(t *testing.T, d *workerdriver.Driver, tokens []int32) *worker.NotFiniteError {
	t.Helper()
	var got result
	got.read(t, d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: tokens, MaxTokens: 30}), false)
	if got.finished == nil || got.finished.Reason != scheduler.Failed || len(got.tokens) > 0 {
		t.Fatalf("%+v", got)
	}
	found, is := errors.AsType[*worker.NotFiniteError](got.finished.Err)
	if !is {
		t.Fatalf("%v", got.finished.Err)
	}
	return found
}

func illPrompt(second int32) []int32 { return append([]int32{ill, second}, prompt(9)...) }

// A sequence whose KV becomes no number fails alone and says where; nobody finds its
// blocks any more, and they are overwritten before anybody gets them.
func TestSpoiltKVFailsItsSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSpoiling(t)
		m, published := start(t, e, controlv1.Role_ROLE_DECODE, nil)
		d := m.Driver()
		first := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: prompt(14), MaxTokens: 30})
		second := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: prompt(14), MaxTokens: 30, Salt: "another"})
		time.Sleep(105 * time.Millisecond)
		e.spoil.Store(1)
		var failed, well result
		failed.read(t, first, false)
		well.read(t, second, false)
		found, _ := errors.AsType[*worker.NotFiniteError](failed.finished.Err)
		if found == nil || found.Layer != 1 || found.Position != 0 || found.Origin != "" {
			t.Errorf("failed with %v", failed.finished.Err)
		}
		if len(failed.tokens) == 0 || !slices.Equal(failed.tokens, well.tokens[:len(failed.tokens)]) {
			t.Errorf("drew %v, and beside it %v", failed.tokens, well.tokens)
		}
		if well.finished.Reason != scheduler.Length || len(well.tokens) != 30 {
			t.Errorf("the one beside it: %+v", well.finished)
		}
		err := worker.FailedError(failed.finished.Err)
		if status.Code(err) != codes.DataLoss || rpc.Reason(err) != api.ReasonNotFinite || !strings.Contains(err.Error(), "layer 1") {
			t.Errorf("the status is %v", err)
		}
		synctest.Wait()
		if s := d.PoolStats(); s.Quarantined+s.Held != 0 || s.Misuses != 0 {
			t.Errorf("left: %+v", s)
		}
		for block := range kvcache.BlockID(e.Capacity().Blocks) {
			if slice := e.Pages().View(1, block); e.NotFinite(slice, 4) < 4 {
				t.Errorf("block %d is as it was", block)
			}
		}
		snapshot, _ := d.Snapshot()
		if len(published.removed) == 0 || len(snapshot) != len(published.stored)-len(published.removed) {
			t.Errorf("%d hashes of %d stored and %d removed", len(snapshot), len(published.stored), len(published.removed))
		}
	})
}

// A worker that fails several prompts by itself leaves and ends, as without its device; one
// that fails the same prompt again and again, or one in a while, does not.
func TestMemberThatComputesWronglyEnds(t *testing.T) {
	for _, c := range []struct {
		name    string
		second  []int32 // of the prompts
		between time.Duration
		ends    bool
	}{
		{"two prompts", []int32{1, 2}, time.Second, true},
		{"one prompt, again and again", []int32{1, 1, 1, 1}, time.Second, false},
		{"two prompts in a long time", []int32{1, 2, 1, 2}, 11 * time.Minute, false},
		{"another one among many of the same", []int32{1, 1, 1, 2}, time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged bytes.Buffer
				cfg := memberConfig(controlv1.Role_ROLE_DECODE, newSpoiling(t))
				cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
				m, err := workerdriver.NewMember(cfg)
				if err != nil {
					t.Fatal(err)
				}
				r := new(registration)
				m.Join(r.register)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				for i, second := range c.second {
					if i > 0 {
						time.Sleep(c.between)
					}
					if found := notFinite(t, m.Driver(), illPrompt(second)); found.Layer != -1 || found.Origin != "" {
						t.Errorf("%+v", found)
					}
				}
				synctest.Wait()
				if leaves := m.Driver().Draining(); leaves != c.ends {
					t.Errorf("it leaves: %v", leaves)
				}
				if !c.ends {
					cancel()
				}
				select {
				case err := <-ended:
					if errors.Is(err, worker.ErrNotFinite) != c.ends || (err != nil) != c.ends {
						t.Errorf("Run ended with %v", err)
					}
				case <-time.After(time.Minute):
					t.Error("it goes on")
				}
				cancel()
				if c.ends {
					r.check(t, registered, draining)
				}
				if strings.Contains(logged.String(), "this worker is leaving") != c.ends {
					t.Errorf("logged:\n%s", logged.String())
				}
			})
		})
	}
}

// What still runs or waits when such a worker ends is ended with it, so that its drain waits for nothing.
func TestNothingIsLeftOfAWorkerThatComputesWrongly(t *testing.T) {
	for _, c := range []struct {
		name string
		of   func(engine.Engine) engine.Engine
	}{
		{"computed", func(e engine.Engine) engine.Engine { return e }},
		{"started ahead", func(e engine.Engine) engine.Engine { return &starter{Engine: e} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 20 { // which of two is ready first is chance
				synctest.Test(t, func(t *testing.T) {
					m, err := workerdriver.NewMember(memberConfig(controlv1.Role_ROLE_DECODE, c.of(newSpoilingThatTakes(t, 100))))
					if err != nil {
						t.Fatal(err)
					}
					r := new(registration)
					m.Join(r.register)
					d := m.Driver()
					ended := make(chan error, 1)
					go func() { ended <- m.Run(t.Context()) }()
					submit := func(tokens []int32, maxTokens int) *workerdriver.Sequence {
						return d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: tokens, MaxTokens: maxTokens})
					}
					runs := submit(prompt(60), 60)
					submit(illPrompt(1), 2)
					submit(illPrompt(2), 2)
					waits := submit(prompt(100), 2) // there are not enough blocks for both
					if err := <-ended; !errors.Is(err, worker.ErrNotFinite) {
						t.Errorf("Run ended with %v", err)
					}
					for name, s := range map[string]*workerdriver.Sequence{"what ran": runs, "what waited": waits, "what came later": submit(prompt(9), 2)} {
						var got result
						got.read(t, s, false)
						switch ran := name == "what ran"; {
						case got.finished == nil && (got.refused == nil || ran),
							ran && (len(got.tokens) == 0 || got.finished.Reason != scheduler.Cancelled),
							name == "what waited" && got.started != nil:
							t.Errorf("%s: %+v", name, got)
						}
					}
					if n := d.Remaining(); n > 0 {
						t.Errorf("%d sequences are left", n)
					}
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if m.Drain(ctx, time.Second); time.Since(began) > 0 {
						t.Errorf("the drain took %v", time.Since(began))
					}
					r.check(t, registered, draining, closed)
				})
			}
		})
	}
}

// KV that came from others speaks against them, however often, and who goes on with it
// stays.
func TestReceivedKVSpeaksAgainstItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		e := newSpoiling(t)
		cfg := memberConfig(controlv1.Role_ROLE_DECODE, e)
		cfg.Registerer = registry
		m, err := workerdriver.NewMember(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- m.Run(ctx) }()
		d := m.Driver()
		ones := bytes.Repeat([]byte{0xff}, e.Pages().Layout().SliceBytes)
		for i := range int32(4) {
			tokens := append([]int32{i}, prompt(9)...)
			id := d.Reserve()
			s := d.Submit(scheduler.Request{ID: id, Kind: scheduler.Receive, Tokens: tokens, MaxTokens: 9})
			var got result
			got.read(t, s, true)
			if err := e.Pages().Write(2, got.reserved.Blocks[:1], ones); err != nil {
				t.Fatal(err)
			}
			d.KVArrived(scheduler.KVArrived{ID: id, Sampled: []int32{7}, From: "p9"})
			// Who would share it, and comes before the step has shown what it is.
			next := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: tokens, MaxTokens: 9})
			var failed, well result
			failed.read(t, s, false)
			well.read(t, next, false)
			found, _ := errors.AsType[*worker.NotFiniteError](failed.finished.Err)
			if found == nil || found.Origin != "p9" || found.Layer != 2 || len(failed.tokens) > 0 {
				t.Fatalf("%+v: %v", failed, failed.finished.Err)
			}
			if err := worker.FailedError(found); status.Code(err) != codes.DataLoss || rpc.Reason(err) != api.ReasonKVNotFinite || !strings.Contains(err.Error(), "p9") {
				t.Errorf("the status is %v", err)
			}
			if len(well.tokens) != 9 || well.started.CachedTokens != 0 {
				t.Errorf("the next one: %+v", well)
			}
		}
		synctest.Wait()
		if d.Draining() {
			t.Error("it leaves for what others did")
		}
		want := `
			# HELP tandem_worker_not_finite_total Sequences that failed because their logits were not finite, by the KV that they used: own or received.
			# TYPE tandem_worker_not_finite_total counter
			tandem_worker_not_finite_total{kv="own",worker="w1"} 0
			tandem_worker_not_finite_total{kv="received",worker="w1"} 4
		`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tandem_worker_not_finite_total"); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// slowlyRead is an engine whose pages take a second to read or write, and that is ill if its prompts are.
type slowlyRead struct {
	*spoiling
	pages countedPages
}

type countedPages struct {
	engine.Pages
	reads, writes atomic.Int32
}

func (p *countedPages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	p.reads.Add(1)
	time.Sleep(time.Second)
	return p.Pages.Read(layer, blocks, dst)
}

func (p *countedPages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	p.writes.Add(1)
	time.Sleep(time.Second)
	return p.Pages.Write(layer, blocks, src)
}

func (e *slowlyRead) Pages() engine.Pages { return &e.pages }

func newSlowlyRead(t *testing.T) *slowlyRead {
	e := &slowlyRead{spoiling: newSpoiling(t)}
	e.pages.Pages = e.spoiling.Pages()
	return e
}

// Nobody waits for a worker to look through the KV of one sequence after the other, once it is
// at fault or ends.
func TestKVIsNotInspectedInVain(t *testing.T) {
	const prompts = 5
	submit := func(d *workerdriver.Driver) (all []*workerdriver.Sequence) {
		for i := range int32(prompts) {
			all = append(all, d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: illPrompt(i), MaxTokens: 30}))
		}
		return all
	}
	wait := func(t *testing.T, all []*workerdriver.Sequence, inspected int, registry *prometheus.Registry) {
		for i, s := range all {
			var got result
			got.read(t, s, false)
			err := worker.FailedError(got.finished.Err)
			if status.Code(err) != codes.DataLoss || rpc.Reason(err) != api.ReasonNotFinite {
				t.Errorf("sequence %d: %v", i, err)
			}
			if strings.Contains(err.Error(), "no such keys or values were found") != (i < inspected) || strings.Contains(err.Error(), "not looked through") != (i >= inspected) {
				t.Errorf("sequence %d of which the first %d are looked through: %v", i, inspected, err)
			}
		}
		want := `
			# HELP tandem_worker_not_finite_total Sequences that failed because their logits were not finite, by the KV that they used: own or received.
			# TYPE tandem_worker_not_finite_total counter
			tandem_worker_not_finite_total{kv="own",worker="w1"} 5
			tandem_worker_not_finite_total{kv="received",worker="w1"} 0
		`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tandem_worker_not_finite_total"); err != nil {
			t.Error(err)
		}
	}
	measured := func(t *testing.T, e engine.Engine) (*workerdriver.Driver, *prometheus.Registry) {
		registry := prometheus.NewRegistry()
		metrics, err := workerdriver.NewMetrics(registry, "w1")
		if err != nil {
			t.Fatal(err)
		}
		d, err := workerdriver.NewDriver(workerdriver.Config{Engine: e, Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: prompts}, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return d, registry
	}
	whole := int32(len(illPrompt(0))+3) / 4 * 3 // of a sequence: blocks of 4 tokens, 3 layers
	t.Run("at fault", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newSlowlyRead(t)
			d, registry := measured(t, e)
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan struct{})
			go func() { defer close(ran); d.Run(ctx) }()
			wait(t, submit(d), 2, registry)
			cancel()
			<-ran
			if n := e.pages.reads.Load(); n != 2*whole {
				t.Errorf("%d reads, want %d for two sequences, which show that the worker is at fault", n, 2*whole)
			}
		})
	})
	t.Run("over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newSlowlyRead(t)
			d, registry := measured(t, e)
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan struct{})
			go func() { defer close(ran); d.Run(ctx) }()
			all := submit(d)
			time.Sleep(1500 * time.Millisecond) // the second read
			cancel()
			<-ran
			wait(t, all, 0, registry)
			if n := e.pages.reads.Load(); n != 2 {
				t.Errorf("%d reads after two and the end of the worker", n)
			}
		})
	})
}

// A worker that ends does not wait until the blocks that are not finite are overwritten.
func TestScrubbingEndsWithTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSlowlyRead(t)
		d, err := workerdriver.NewDriver(workerdriver.Config{Engine: e, Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: 1}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() { defer close(ran); d.Run(ctx) }()
		s := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: prompt(14), MaxTokens: 30})
		time.Sleep(105 * time.Millisecond)
		e.spoil.Store(1)
		var got result
		got.read(t, s, false)
		synctest.Wait() // for the first write
		cancel()
		<-ran
		if n := e.pages.writes.Load(); n != 1 {
			t.Errorf("%d writes, of layers that take one each", n)
		}
	})
}
