package workerdriver_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// starter is an engine whose steps can be started: a goroutine computes them.
type starter struct {
	engine.Engine
	refuse error // of Start, from the third on

	mu      sync.Mutex // held from Start to Wait
	out     engine.Output
	err     error
	done    chan struct{}
	started atomic.Int64
	waited  atomic.Int64
	stepped atomic.Int64
}

func (s *starter) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepped.Add(1)
	return s.Engine.Step(ctx, batch)
}

func (s *starter) Start(_ context.Context, batch engine.Batch) error {
	if s.refuse != nil && s.started.Load() >= 2 {
		return s.refuse
	}
	s.mu.Lock()
	s.done = make(chan struct{})
	s.started.Add(1)
	go func() {
		defer close(s.done)
		s.out, s.err = s.Engine.Step(context.Background(), batch)
	}()
	return nil
}

func (s *starter) Wait() (engine.Output, error) {
	defer s.mu.Unlock()
	<-s.done
	s.waited.Add(1)
	return s.out, s.err
}

func runDriver(t *testing.T, e engine.Engine) (_ *workerdriver.Driver, stop func()) {
	t.Helper()
	d, err := workerdriver.NewDriver(workerdriver.Config{Engine: e, Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: 4}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	return d, func() { cancel(); <-done }
}

// TestStepsAreStartedAhead: whoever gets a token gets it while the device computes the
// next one, and the tokens are those of an engine that is not started.
func TestStepsAreStartedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tokens = 30
		request := scheduler.Request{ID: 1, Tokens: prompt(40), MaxTokens: tokens}
		plain, stopPlain := runDriver(t, newEngine(t, latency.Model{BaseMs: 10}))
		var want result
		want.read(t, plain.Submit(request), false)
		stopPlain()

		e := &starter{Engine: newEngine(t, latency.Model{BaseMs: 10})}
		d, stop := runDriver(t, e)
		defer stop()
		s := d.Submit(request)
		var got []int32
		for len(got) < tokens {
			select {
			case <-s.Ready():
			case <-time.After(time.Minute):
				t.Fatal("the sequence hangs")
			}
			for _, action := range s.Take() {
				token, is := action.(*scheduler.Sampled)
				if !is {
					continue
				}
				got = append(got, token.Token)
				if n := e.started.Load(); len(got) < tokens && n != int64(len(got)) {
					t.Fatalf("%d steps were started when token %d came", n, len(got))
				}
			}
		}
		if n := len(want.tokens); n != tokens || !slices.Equal(got, want.tokens) {
			t.Errorf("got %v, want %v", got, want.tokens)
		}
		synctest.Wait()
		// The prompt is computed in three chunks, and each token after the first in one.
		if started, waited, stepped := e.started.Load(), e.waited.Load(), e.stepped.Load(); started != tokens-1 || waited != started || stepped != 3 {
			t.Errorf("%d steps started, %d waited for, %d computed otherwise", started, waited, stepped)
		}
	})
}

// TestStartedStepIsWaitedFor when the driver ends: its engine can be closed then. Its sequences end,
// with the step in their spans, and what comes later fails.
func TestStartedStepIsWaitedFor(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			e := &starter{Engine: newEngine(t, latency.Model{BaseMs: 10})}
			d, stop := runDriver(t, e)
			spans := tracetest.NewSpanRecorder()
			sampled := trace.ContextWithRemoteSpanContext(t.Context(), rpc.ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
			_, traced := workerdriver.StartTrace(sampled, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"), "tandem.decode", workerv1.Decode_Run_FullMethodName, nil)
			d.Trace(1, traced)
			s := d.Submit(scheduler.Request{ID: 1, Tokens: prompt(9), MaxTokens: 100})
			for range 5 {
				<-s.Ready()
			}
			traced.Token(0)
			stop()
			traced.End(nil)
			decode := slices.IndexFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "decode" })
			if decode < 0 {
				t.Fatal("no span of decoding")
			}
			if got, want := spans.Ended()[decode].Attributes(), attribute.Int64("tandem.steps", e.waited.Load()); !slices.Contains(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if started, waited := e.started.Load(), e.waited.Load(); started == 0 || started != waited {
				t.Errorf("%d steps started, %d waited for", started, waited)
			}
			var ran, late result
			ran.read(t, s, false)
			late.read(t, d.Submit(scheduler.Request{ID: 2, Tokens: prompt(9), MaxTokens: 100}), false)
			if late.finished == nil || late.finished.Reason != scheduler.Failed || d.Remaining() > 0 {
				t.Errorf("what comes when the driver has ended: %+v, %d sequences are left", late, d.Remaining())
			}
		})
	}
}

func TestStartThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &starter{Engine: newEngine(t, latency.Model{BaseMs: 10}), refuse: errors.Join(errors.New("no"), engine.ErrDeviceLost)}
		d, stop := runDriver(t, e)
		defer stop()
		var got result
		got.read(t, d.Submit(scheduler.Request{ID: 1, Tokens: prompt(9), MaxTokens: 100}), false)
		if got.finished == nil || !errors.Is(got.finished.Err, engine.ErrDeviceLost) || len(got.tokens) != 3 {
			t.Errorf("ended with %+v after %d tokens", got.finished, len(got.tokens))
		}
		select {
		case <-d.Lost():
		case <-time.After(time.Minute):
			t.Error("nobody hears that the device is lost")
		}
	})
}
