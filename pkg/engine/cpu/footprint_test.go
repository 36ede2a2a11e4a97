package cpu_test

import (
	"cmp"
	"runtime"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// classNames are part of what layouts and blocks are known by: a change of one makes all
// KV that was computed before useless, so that it is to be meant.
var classNames = map[cpu.WeightType]map[cpu.KVType]string{
	cpu.BF16: {cpu.KVBF16: "cpu/bf16/bf16/1", cpu.KVInt8: "cpu/bf16/int8/1"},
	cpu.Int8: {cpu.KVBF16: "cpu/int8/bf16/1", cpu.KVInt8: "cpu/int8/int8/1"},
	cpu.Int4: {cpu.KVBF16: "cpu/int4/bf16/1", cpu.KVInt8: "cpu/int4/int8/1"},
}

// TestLayoutNames pins the names that are part of a layout's digest.
func TestLayoutNames(t *testing.T) {
	for kind, names := range classNames {
		for kv, class := range names {
			if got := kind.ArithmeticClass(kv); got != class {
				t.Errorf("weights in %s, KV in %s: class %q, want %q", kind, kv, got, class)
			}
		}
	}
	if cpu.Order != "k-d2t2/v-t2d2/1" || cpu.OrderInt8 != "k-dt/v-td/s-t/1" {
		t.Errorf("orders %q and %q", cpu.Order, cpu.OrderInt8)
	}
}

// TestFootprint compares what is said before the weights are read with what they and
// the engines' workspaces take.
func TestFootprint(t *testing.T) {
	for _, shape := range model.Presets() {
		if shape.VocabSize > 512 {
			continue
		}
		m := synthesize(t, shape)
		for _, kind := range []cpu.WeightType{cpu.BF16, cpu.Int8, cpu.Int4} {
			w := loadAs(t, m, kind, 2)
			if said, took := cpu.WeightBytes(m.Spec(), kind), w.Bytes(); said != took {
				t.Errorf("%s, %s: %d bytes said, %d taken", shape.Name, kind, said, took)
			}
			for _, config := range []cpu.Config{
				{Blocks: 4},
				{Blocks: 1, Threads: 1, BlockTokens: 16, MaxBatchTokens: 1, MaxSequences: 1},
				{Blocks: 1, BlockTokens: 256, MaxBatchTokens: 1000, MaxSequences: 999},
				{Blocks: 4, KV: cpu.KVInt8},
			} {
				config.Weights = kind
				e := newEngine(t, w, config)
				if got := e.Capacity(); got.BytesPerWeight != kind.BytesPerWeight() || got.Layout.ArithmeticClass != classNames[kind][cmp.Or(config.KV, cpu.KVBF16)] {
					t.Errorf("%s: %v bytes a weight, class %s", kind, got.BytesPerWeight, got.Layout.ArithmeticClass)
				}
				if said, has := cpu.SliceBytes(m.Spec(), config), e.Capacity().Layout.SliceBytes; said != has {
					t.Errorf("%s: %d bytes said for a slice of %+v, it has %d", shape.Name, said, config, has)
				}
				if config.Threads == 0 {
					config.Threads = w.Threads()
				}
				if said, took := cpu.WorkspaceBytes(m.Spec(), config), cpu.WorkspaceOf(e); said != took || took < 1<<10 {
					t.Errorf("%s, %s: %d bytes said for a workspace of %+v, %d taken", shape.Name, kind, said, config, took)
				}
				took := w.Bytes() + cpu.WorkspaceOf(e) + int64(config.Blocks*m.Spec().Layers*e.Capacity().Layout.SliceBytes)
				if said := cpu.FootprintBytes(m.Spec(), config); said != took {
					t.Errorf("%s, %s: %d bytes said for %+v, %d taken", shape.Name, kind, said, config, took)
				}
			}
		}
	}
}

// TestMostThreads: the threads that a pool can have are accepted, and the default is no more.
func TestMostThreads(t *testing.T) {
	for threads, want := range map[int]bool{-1: false, 0: true, 1023: true, 1024: false} {
		config := cpu.Config{Threads: threads, Weights: cpu.BF16, KV: cpu.KVBF16}
		if err := config.Validate(); (err == nil) != want {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
	spec := model.Spec{HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadSize: 16, FFNSize: 160, VocabSize: 512, ContextTokens: 512}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1100))
	if got, want := cpu.WorkspaceBytes(spec, cpu.Config{}), cpu.WorkspaceBytes(spec, cpu.Config{Threads: 1023}); got != want {
		t.Errorf("by default %d bytes, with 1023 threads %d", got, want)
	}
}

// TestWorkspaceOfWhatIsRefused: sizes that no engine has take nothing.
func TestWorkspaceOfWhatIsRefused(t *testing.T) {
	if got := cpu.WorkspaceBytes(model.Spec{}, cpu.Config{}); got != 0 {
		t.Errorf("a model without heads: %d bytes", got)
	}
	spec := model.Spec{HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadSize: 16, FFNSize: 160, VocabSize: 512, ContextTokens: 512}
	if got := cpu.WorkspaceBytes(spec, cpu.Config{BlockTokens: 5}); got != 0 {
		t.Errorf("blocks of 5 tokens: %d bytes", got)
	}
	one, many := cpu.WorkspaceBytes(spec, cpu.Config{Threads: 1}), cpu.WorkspaceBytes(spec, cpu.Config{Threads: 64})
	if one == 0 || many <= one {
		t.Errorf("%d bytes for one thread, %d for 64", one, many)
	}
}
