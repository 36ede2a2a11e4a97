package cpu_test

import (
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestFootprint compares what is said before the weights are read with what they and
// the engines' workspaces take.
func TestFootprint(t *testing.T) {
	for _, shape := range model.Presets() {
		if shape.VocabSize > 512 {
			continue
		}
		dir := filepath.Join(t.TempDir(), shape.Name)
		if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{}); err != nil {
			t.Fatal(err)
		}
		m, err := model.Open(dir, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := cpu.Load(m, 2, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if said, took := cpu.WeightBytes(m.Spec()), w.Bytes(); took < said || float64(took) > 1.02*float64(said) {
			t.Errorf("%s: %d bytes said, %d taken", shape.Name, said, took)
		}
		for _, config := range []cpu.Config{
			{Blocks: 4},
			{Blocks: 1, Threads: 1, BlockTokens: 16, MaxBatchTokens: 1, MaxSequences: 1},
			{Blocks: 1, BlockTokens: 256, MaxBatchTokens: 1000, MaxSequences: 999},
		} {
			e, err := w.NewEngine(config)
			if err != nil {
				t.Fatal(err)
			}
			if config.Threads == 0 {
				config.Threads = w.Threads()
			}
			if said, took := cpu.WorkspaceBytes(m.Spec(), config), cpu.WorkspaceOf(e); said != took || took < 1<<10 {
				t.Errorf("%s: %d bytes said for a workspace of %+v, %d taken", shape.Name, said, config, took)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
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
