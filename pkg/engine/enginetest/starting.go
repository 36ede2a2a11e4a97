package enginetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// testStarting checks engine.AsyncStepper of an engine that is one.
func testStarting(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	starting, is := e.(engine.AsyncStepper)
	if !is {
		t.Skip("its steps are not started and waited for apart")
	}
	p := prompt(e, 21, 6)
	want := generate(t, e, p, 6, 0)
	blocks := blocksFor(e, len(p)+len(want), 8)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	next := engine.Sequence{Tokens: p, Blocks: blocks, Sample: draw(0)}
	var got []int32
	for i := range want {
		batch := engine.Batch{Sequences: []engine.Sequence{next}}
		heard := batch
		heard.LayersDone = func() {}
		if err := starting.Start(t.Context(), heard); err == nil {
			t.Fatal("Start took a batch that wants to hear of its layers")
		}
		if err := starting.Start(cancelled, batch); !errors.Is(err, context.Canceled) {
			t.Fatalf("Start under a cancelled context gave %v", err)
		}
		if err := starting.Start(t.Context(), engine.Batch{Sequences: []engine.Sequence{{Blocks: blocks}}}); err == nil {
			t.Fatal("Start took a sequence without tokens")
		}
		if _, err := starting.Wait(); err == nil {
			t.Fatal("Wait found a step where Start had failed")
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := starting.Start(ctx, batch); err != nil {
			t.Fatalf("start: %v", err)
		}
		if err := starting.Start(ctx, batch); err == nil {
			t.Fatal("Start took a second step")
		}
		if _, err := e.Step(ctx, batch); err == nil {
			t.Fatal("Step took a second step")
		}
		cancel() // too late
		out, err := starting.Wait()
		if err != nil {
			t.Fatalf("wait: %v", err)
		}
		got = append(got, out.Tokens[0])
		next = engine.Sequence{Tokens: out.Tokens[:1:1], Start: len(p) + i, Blocks: blocks, Sample: draw(i + 1)}
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps that were started gave %v, others %v", got, want)
	}
}
