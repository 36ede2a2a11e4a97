package engines_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// llama8B has Llama-3.1-8B's shape: 15 GiB of weights, 128 KiB of KV a token, 16 GiB
// a full context.
func llama8B() model.Spec {
	return model.Spec{
		Name: "llama-8b", Architecture: "LlamaForCausalLM", VocabSize: 128256, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128,
		FFNSize: 14336, ContextTokens: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, WeightType: "bf16", BOS: -1,
	}
}

// fable has the bundled model's shape.
func fable() model.Spec {
	return model.Spec{
		Name: "fable", Architecture: "LlamaForCausalLM", VocabSize: 4096, HiddenSize: 256, Layers: 4, Heads: 4, KVHeads: 2, HeadSize: 64,
		FFNSize: 768, ContextTokens: 2048, RMSNormEps: 1e-5, RopeTheta: 1e4, TiedEmbeddings: true, WeightType: "bf16", BOS: -1,
	}
}

// capped is llama8B with a shorter context.
func capped(tokens int) model.Spec {
	spec := llama8B()
	spec.ContextTokens = tokens
	return spec
}

// threads are the same on every machine: each has some workspace.
const threads = 2

// rest is what is set aside for everything but the model: KV pages do not get it. The
// least of it, 64 MiB, has to be there.
const rest = 192 * mib

// bare is enough for the weights and for workers to compute, and not for one block.
func bare(spec model.Spec, workers int64) int64 {
	e := defaults()
	return rest + mib + cpu.WeightBytes(spec, cpu.BF16) + workers*cpu.WorkspaceBytes(spec, cpu.Config{
		Threads: threads, BlockTokens: e.BlockTokens, MaxBatchTokens: e.MaxBatchTokens, MaxSequences: e.MaxSequences,
	})
}

// size sizes c where so many bytes are free; 0: nobody knows how many.
func size(c *engines.Config, spec model.Spec, workers int, free int64) (warning string, err error) {
	left := memory.Left{Bytes: free, By: "/limit"}
	if free == 0 {
		left.Bytes = math.MaxInt64
	}
	return c.Size(spec, workers, workers, left)
}

// A draft model that is too large is what is named, and so it is where little is left for the model.
func TestMemoryForDraftModel(t *testing.T) {
	for _, test := range []struct {
		name    string
		kv      bytesize.Size
		workers int
		left    int64
		says    []string // of the draft model, or else of the model beside it
	}{
		{"both fit", gib, 2, 24 * gib, nil},
		{"its KV does not fit", 20 * gib, 2, 24 * gib, []string{"--draft-kv-memory: 20.0GiB for each of 2 decode workers", "may use only 24.0GiB (/limit)", "pass less"}},
		{"more than can be counted", math.MaxInt64, 3, 24 * gib, []string{"--draft-kv-memory: ", "pass less"}},
		{"it does not fit at all", gib, 2, 65 * mib, []string{"--draft-model: fable does not fit", "a smaller one"}},
		{"the model does not fit beside it", 5 * gib, 2, 24 * gib, []string{"llama-8b does not fit", "may use only 14.0GiB", "for the draft model, where a smaller --draft-kv-memory leaves more"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := defaults()
			config.Name, config.CPU.Threads = engines.CPU, threads
			left, err := config.LeftBesideDraft(fable(), test.kv, test.workers, memory.Left{Bytes: test.left, By: "/limit"})
			if err == nil {
				_, err = config.Size(llama8B(), 4, 4, left)
			}
			if (err != nil) != (test.says != nil) {
				t.Fatalf("error %v", err)
			}
			for _, says := range test.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("error %v, which should say %q", err, says)
				}
			}
		})
	}
	simulated := defaults()
	simulated.Name = engines.Simulated
	if _, err := simulated.LeftBesideDraft(fable(), 0, 1, memory.Left{Bytes: gib}); err == nil || !strings.Contains(err.Error(), "or --engine cpu") {
		t.Errorf("with the simulated engine: %v", err)
	}
}

func TestMemoryForModel(t *testing.T) {
	for _, test := range []struct {
		name    string
		spec    model.Spec
		kv      bytesize.Size
		workers int
		left    int64 // 0: nobody knows
		// wantKV is what each worker gets; 0: it is refused.
		wantKV bytesize.Size
		// says are parts of the error or of the warning.
		says []string
	}{
		{"plenty", fable(), bytesize.Auto, 2, 24 * gib, gib, nil},
		{"nobody knows how much there is", llama8B(), bytesize.Auto, 2, 0, 16 * gib, nil},
		{"a small container takes less", fable(), bytesize.Auto, 2, rest + 216*mib, 48 * mib, nil},
		{"a full context at least", fable(), bytesize.Auto, 2, rest + 40*mib, 4 * mib, nil},
		{"the weights do not fit", llama8B(), bytesize.Auto, 2, 8 * gib, 0, []string{
			"llama-8b does not fit", "weights take 15.0GiB", "may use only 8.0GiB (/limit)", "smaller model", "cannot be split",
		}},
		{"full contexts may not fit", llama8B(), bytesize.Auto, 2, 32 * gib, 16 * gib, []string{
			"may use 32.0GiB (/limit)", "weights take 15.0GiB", "131072 tokens 16.0GiB in each of 2 workers", "--context-tokens 6",
		}},
		{"not even a block may fit", llama8B(), bytesize.Auto, 2, bare(llama8B(), 2), 16 * gib, []string{"may use 15.4GiB (/limit)", "of 131072 tokens", "; no shorter context fits either"}},
		{"a shorter context fits", capped(32768), bytesize.Auto, 2, 32 * gib, 4 * gib, nil},
		{"what is asked for fits", capped(32768), 8 * gib, 2, 32 * gib, 8 * gib, nil},
		{"what is asked for does not", capped(32768), 16 * gib, 2, 32 * gib, 0, []string{
			"--kv-memory: 16GiB for each of 2 workers", "15.0GiB for weights", "may use only 32.0GiB (/limit)", "pass 8.", "GiB or less",
		}},
		{"no full context could", llama8B(), 16 * gib, 2, 32 * gib, 0, []string{"--kv-memory: 16GiB", "shorten the context to 6", "--context-tokens"}},
		{"no context at all could", llama8B(), 16 * gib, 2, bare(llama8B(), 2), 0, []string{"--kv-memory: 16GiB", "no context fits", "fewer workers", "more memory"}},
		{"less than a full context is asked for", llama8B(), 4 * gib, 2, 64 * gib, 0, []string{"4GiB holds 32768 tokens", "16GiB or more, or --context-tokens 32768"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := defaults()
			config.Name, config.KVMemory, config.CPU.Threads = engines.CPU, test.kv, threads
			text, err := size(&config, test.spec, test.workers, test.left)
			kv := config.KVMemory
			if err != nil {
				text = err.Error()
			}
			switch {
			case test.wantKV == 0 && err == nil:
				t.Fatalf("accepted with %s", kv.String())
			case test.wantKV != 0 && (err != nil || kv/mib != test.wantKV/mib):
				t.Fatalf("%s, %v, want %s", kv.String(), err, test.wantKV.String())
			case test.says == nil && text != "", strings.Contains(text, "context-tokens 0"), strings.Contains(text, "context to 0"):
				t.Errorf("says %q", text)
			}
			for _, part := range test.says {
				if !strings.Contains(text, part) {
					t.Errorf("%q does not say %q", text, part)
				}
			}
		})
	}
}

// TestMemoryForSharedKV: KV that is shared is taken at once. So it has to be there, also where nobody
// said how much, and no message says that it costs nothing.
func TestMemoryForSharedKV(t *testing.T) {
	for _, c := range []struct {
		kv   bytesize.Size
		left int64
		says []string // nil: it fits
	}{
		{bytesize.Auto, 64 * gib, nil},
		{bytesize.Auto, 32 * gib, []string{"--kv-transport: with shm", "may use 32.0GiB (/limit)", "--context-tokens 6", "without shm"}},
		{16 * gib, 32 * gib, []string{"--kv-memory: 16GiB for each of 2 workers"}},
		{4 * gib, 64 * gib, []string{"--kv-memory: 4GiB holds"}},
	} {
		config := defaults()
		config.Name, config.KVMemory, config.CPU.Threads, config.ShareKV = engines.CPU, c.kv, threads, true
		warning, err := size(&config, llama8B(), 2, c.left)
		if warning != "" || (err != nil) != (c.says != nil) {
			t.Errorf("%s in %d bytes: warning %q, error %v", c.kv.String(), c.left, warning, err)
			continue
		}
		for _, says := range c.says {
			if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "cost nothing") {
				t.Errorf("%s in %d bytes: %v, want %q", c.kv.String(), c.left, err, says)
			}
		}
	}
}

// TestSharedKVOfDecodeWorkers: only decode workers share theirs; that of the others is taken as it is
// used, and no more than a warning.
func TestSharedKVOfDecodeWorkers(t *testing.T) {
	config := defaults()
	config.Name, config.KVMemory, config.CPU.Threads, config.ShareKV = engines.CPU, bytesize.Auto, threads, true
	warning, err := config.Size(llama8B(), 3, 1, memory.Left{Bytes: 34 * gib, By: "/limit"})
	if err != nil || !strings.Contains(warning, "in each of 3 workers") {
		t.Errorf("warning %q, error %v", warning, err)
	}
	config.KVMemory = bytesize.Auto
	if _, err := config.Size(llama8B(), 3, 2, memory.Left{Bytes: 34 * gib, By: "/limit"}); err == nil || !strings.Contains(err.Error(), "in each of 2 workers") {
		t.Errorf("two decode workers: %v", err)
	}
}

// TestSimulatedNeedsNoMemory: it has neither weights nor pages.
func TestSimulatedNeedsNoMemory(t *testing.T) {
	config := defaults()
	config.Name = engines.Simulated
	if warning, err := size(&config, llama8B(), 64, mib); err != nil || warning != "" || config.KVMemory != 16*gib {
		t.Errorf("%s, %q, %v", config.KVMemory.String(), warning, err)
	}
}

// TestFewerBytesAWeight: a model that does not fit in one type of weights does in another,
// which the error names.
func TestFewerBytesAWeight(t *testing.T) {
	for _, c := range []struct {
		weights cpu.WeightType
		left    int64
		says    string // "": it fits
		not     string // what is not said
	}{
		{cpu.BF16, 12 * gib, "pass --cpu-weights int8", "int4"},
		{cpu.Int8, 12 * gib, "", ""},
		{cpu.BF16, 6 * gib, "pass --cpu-weights int4", "int8"},
		{cpu.Int8, 6 * gib, "pass --cpu-weights int4", "int8"},
		{cpu.Int4, 6 * gib, "", ""},
		{cpu.BF16, 5 * gib, "use a smaller model", "--cpu-weights"},
		{cpu.Int4, 5 * gib, "use a smaller model", "--cpu-weights"},
	} {
		config := defaults()
		config.Name, config.CPU.Threads, config.CPU.Weights = engines.CPU, threads, c.weights
		_, err := size(&config, llama8B(), 1, c.left)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s in %d bytes: %v", c.weights, c.left, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), c.not) {
			t.Errorf("%s in %d bytes: %v, want %q", c.weights, c.left, err, c.says)
		}
	}
}

// TestMemoryForKVInInt8: where a full context does not fit in bf16 and does in int8, errors and
// warnings say so; elsewhere they do not.
func TestMemoryForKVInInt8(t *testing.T) {
	for _, c := range []struct {
		kv      cpu.KVType
		left    int64
		offered bool
	}{
		{cpu.KVBF16, 27 * gib, true},  // 16 GiB of weights in bf16; 16 of KV, or 8.2
		{cpu.KVBF16, 22 * gib, false}, // not even in int8
		{cpu.KVInt8, 22 * gib, false},
		{cpu.KVBF16, 64 * gib, false}, // it fits as it is
	} {
		config := defaults()
		config.Name, config.CPU.Threads, config.CPU.KV = engines.CPU, threads, c.kv
		warning, err := size(&config, llama8B(), 1, c.left)
		if err != nil || strings.Contains(warning, "--cpu-kv int8") != c.offered {
			t.Errorf("KV in %s, %d bytes: warning %q, error %v", c.kv, c.left, warning, err)
		}
		config.KVMemory = 16 * gib
		_, err = size(&config, llama8B(), 1, c.left)
		if said := err != nil && strings.Contains(err.Error(), "--cpu-kv int8"); said != c.offered {
			t.Errorf("KV in %s, %d bytes, 16 GiB asked for: %v", c.kv, c.left, err)
		}
	}
}

// TestAutoIsWithinMemory: what Auto stands for holds a full context, is whole blocks,
// and either fits or is warned about; and it is refused only if the weights alone
// are too much.
func TestAutoIsWithinMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := llama8B()
		spec.Layers = rapid.IntRange(1, 64).Draw(t, "layers")
		spec.ContextTokens = rapid.IntRange(1, 1<<20).Draw(t, "context")
		workers := rapid.IntRange(1, 16).Draw(t, "workers")
		left := rapid.Int64Range(1, 1<<40).Draw(t, "left")
		config := defaults()
		config.Name = engines.CPU
		warning, err := size(&config, spec, workers, left)
		kv, weights := config.KVMemory, cpu.WeightBytes(spec, cpu.BF16)
		if err != nil {
			if fixed := 64*mib + weights + int64(workers)*cpu.WorkspaceBytes(spec, cpu.Config{
				BlockTokens: config.BlockTokens, MaxBatchTokens: config.MaxBatchTokens, MaxSequences: config.MaxSequences,
			}); fixed <= left {
				t.Fatalf("refused %d of %d bytes: %v", fixed, left, err)
			}
			return
		}
		full := int64(spec.ContextTokens) * int64(spec.Layers) * 4096
		fits := rest+weights+int64(workers)*int64(kv) <= left
		if int64(kv) < full || warning == "" && !fits {
			t.Fatalf("%s for %d bytes of context in %d bytes, warning %q", kv.String(), full, left, warning)
		}
	})
}
