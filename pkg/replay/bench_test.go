package replay_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// BenchmarkRecord measures what an event costs its core's loop.
func BenchmarkRecord(b *testing.B) {
	const sequences, context = 64, 2048
	tokens, blocks := make([]int32, context), make([]kvcache.BlockID, context/32)
	step := &scheduler.RunStep{Parts: make([]scheduler.Part, sequences)}
	drawn := make([]any, 0, sequences+1)
	for i := range sequences {
		step.Batch.Sequences = append(step.Batch.Sequences, engine.Sequence{
			Tokens: tokens[:1], Start: context, Blocks: blocks, Sample: &engine.Sample{History: sampler.History{Prompt: tokens}},
		})
		step.Parts[i].ID = scheduler.SequenceID(i)
		drawn = append(drawn, &scheduler.Sampled{ID: scheduler.SequenceID(i), Offset: 5, Token: 7})
	}
	for _, bench := range []struct {
		name    string
		kind    string
		event   any
		actions []any
	}{
		{"load report", eventlog.KindRouting, routing.LoadReported{Report: &controlv1.LoadReport{
			Origin: &controlv1.Origin{Id: "decode-1", Epoch: 12345678, Sequence: 9}, BlocksFree: 100, BlocksTotal: 200, StepTime: &controlv1.StepTimeModel{BaseMs: 1, PerTokenMs: 2},
		}}, nil},
		{"request of 2048 tokens", eventlog.KindRouting, routing.Arrived{Request: routing.Request{
			ID: "0123456789abcdef", Tenant: "t", Model: "m", Arrived: time.Now(), Deadline: time.Now(), Tokens: context,
			Hashes: map[routing.BlockKey][]kvcache.Hash{{}: make([]kvcache.Hash, context/32)}, Hash: func(routing.BlockKey) []kvcache.Hash { return nil },
		}}, []any{routing.Dispatch{ID: "0123456789abcdef", Decision: &controlv1.Decision{}}}},
		{"step of 64 sequences", eventlog.KindWorker, scheduler.StepDone{Tokens: tokens[:sequences], Compute: time.Second}, append(drawn, step)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			codecs, err := replay.NewCodecs()
			if err != nil {
				b.Fatal(err)
			}
			log, err := eventlog.Create(filepath.Join(b.TempDir(), "log"), eventlog.Options{Codecs: codecs, Limit: 1 << 40, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			core, _ := eventlog.Begin[any](log, bench.kind, nil)
			b.ReportAllocs()
			for b.Loop() {
				core.Event(log.Now(), bench.event)
				core.Actions(bench.actions)
			}
			if err := log.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
