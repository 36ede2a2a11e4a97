package workerdriver_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// stepped is an engine without a device. It computes a step when it is let.
type stepped struct {
	engine.Engine // has no pages and is not closed
	let           chan struct{}
	computed      chan int // sequences in the step
}

func (*stepped) Model() model.Spec {
	return model.Spec{Name: "toy", Digest: "d1", VocabSize: 500, Layers: 3, ContextTokens: 4096}
}

func (*stepped) Capacity() engine.Capacity {
	return engine.Capacity{
		Blocks: 6000, MaxBatchTokens: 512, MaxSequences: 32, Threads: 1,
		Layout: kvcache.Layout{ArithmeticClass: "none/1", Layers: 3, BlockTokens: 16},
	}
}

func (e *stepped) Step(ctx context.Context, b engine.Batch) (engine.Output, error) {
	select {
	case <-e.let:
	case <-ctx.Done():
		return engine.Output{}, ctx.Err()
	}
	tokens := b.NewTokens()
	for i := range b.Sequences {
		if b.Sequences[i].Sample != nil {
			tokens[i] = 7
		}
	}
	for layer := range 3 {
		b.LayerDone(layer)
	}
	b.LayersDone()
	e.computed <- len(b.Sequences)
	return engine.Output{Tokens: tokens}, nil
}

// TestSteadyDecodeAllocatesNothing: neither what plans and runs a step nor what hands
// its tokens out, once every size was there.
func TestSteadyDecodeAllocatesNothing(t *testing.T) {
	metrics, err := workerdriver.NewMetrics(prometheus.NewRegistry(), "w1")
	if err != nil {
		t.Fatal(err)
	}
	e := &stepped{let: make(chan struct{}), computed: make(chan int)}
	layers, ends, stored := 0, 0, 0
	d, err := workerdriver.NewDriver(workerdriver.Config{
		Engine: e, Limits: worker.Limits{ChunkTokens: 256, MaxWaiting: 64}, Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
		LayerDone:  func(scheduler.RunStep, int) { layers++ },
		LayersDone: func(scheduler.RunStep) { ends++ },
		BlocksChanged: func(_ trace.SpanContext, added, _ []kvcache.Hash) uint64 {
			stored += len(added)
			return uint64(stored)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	stop := func() { cancel(); <-done }
	defer stop()

	const sequences = 20
	var running []*workerdriver.Sequence
	for i := range sequences {
		running = append(running, d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: []int32{int32(i), 5, 6}, MaxTokens: 4000}))
	}
	tokens := 0
	run := func() int {
		e.let <- struct{}{}
		return <-e.computed
	}
	take := func() {
		for _, s := range running {
			for _, action := range s.Take() {
				if token, is := action.(*scheduler.Sampled); is && token.Token == 7 {
					tokens++
				}
			}
		}
	}
	// Each fills two blocks. Tokens are taken at every third step, so that what a
	// sequence keeps them in has held three: a reader may be late.
	for i := range 42 {
		run()
		if i%3 == 2 {
			take()
		}
	}
	const steps = 50
	before := tokens
	if n := testing.AllocsPerRun(5, func() {
		for range steps {
			if n := run(); n != sequences {
				t.Fatalf("a step of %d", n)
			}
			take()
		}
	}); n != 0 {
		t.Errorf("%v allocations in %d steps", n, steps)
	}
	stop() // all is ours from here on
	// A step's tokens may come with the next one's.
	if got, want := tokens-before, 6*steps*sequences; got < want-sequences || got > want+sequences {
		t.Errorf("%d tokens, want %d", got, want)
	}
	if layers < 6*steps*3 || ends != layers/3 || stored < sequences*18 {
		t.Errorf("%d layers, %d ends of steps and %d blocks were told", layers, ends, stored)
	}
}
