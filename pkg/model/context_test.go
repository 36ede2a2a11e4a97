package model_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestContextTokens: a limit bounds the context and nothing else.
func TestContextTokens(t *testing.T) {
	t.Parallel()
	c := newFamilyCheckpoint("MistralForCausalLM")
	c.config["sliding_window"] = 32
	dir := c.write(t)
	whole := open(t, dir, model.Options{}).Spec()
	for _, test := range []struct {
		limit, want int
		window      bool
	}{{0, 64, true}, {64, 64, true}, {1000, 64, true}, {33, 33, true}, {32, 32, false}, {1, 1, false}} {
		opts := model.Options{ContextTokens: test.limit}
		got := open(t, dir, opts).Spec()
		if got.ContextTokens != test.want || got.Digest != whole.Digest || (got.LayerWindows != nil) != test.window {
			t.Errorf("limit %d: %d tokens, windows %v, digest %s", test.limit, got.ContextTokens, got.LayerWindows, got.Digest)
		}
		spec, err := model.LoadSpec(dir, opts)
		got.Digest = ""
		if diff := cmp.Diff(got, spec); diff != "" || err != nil {
			t.Errorf("limit %d: LoadSpec: %v %s", test.limit, err, diff)
		}
	}
}

// TestFamilyDigest: each thing that changes the arithmetic changes the digest, and
// how tokens are drawn does not.
func TestFamilyDigest(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	seen := map[string]string{}
	for name, change := range map[string]object{
		"nothing":           {},
		"a window":          {"use_sliding_window": true, "max_window_layers": 0, "sliding_window": 32},
		"a longer window":   {"use_sliding_window": true, "max_window_layers": 0, "sliding_window": 33},
		"one layer's":       {"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 32},
		"linear":            {"max_position_embeddings": 32, "rope_scaling": object{"type": "linear", "factor": 2}},
		"yarn":              {"rope_scaling": object{"type": "yarn", "factor": 2, "original_max_position_embeddings": 32}},
		"yarn, another mix": {"rope_scaling": object{"type": "yarn", "factor": 2, "original_max_position_embeddings": 32, "beta_fast": 31}},
		"yarn, not rounded": {"rope_scaling": object{"type": "yarn", "factor": 2, "original_max_position_embeddings": 32, "truncate": false}},
		"yarn, weaker":      {"rope_scaling": object{"type": "yarn", "factor": 2, "original_max_position_embeddings": 32, "attention_factor": 1}},
		"llama3":            {"rope_scaling": object{"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}},
		"llama3, narrower":  {"rope_scaling": object{"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 3, "original_max_position_embeddings": 32}},
	} {
		c := newFamilyCheckpoint("Qwen2ForCausalLM")
		for key, value := range change {
			c.config[key] = value
		}
		dir := c.write(t)
		digest := open(t, dir, model.Options{}).Spec().Digest
		if other, twice := seen[digest]; twice {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[digest] = name
		writeFile(t, filepath.Join(dir, "generation_config.json"), []byte(`{"temperature":0.5}`))
		if again := open(t, dir, model.Options{}).Spec().Digest; again != digest {
			t.Errorf("%s: the temperature changes the digest", name)
		}
	}
}

// TestSynthesizedFamilies: what each small preset is, and, by its digest, that it
// stays what it is.
func TestSynthesizedFamilies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		digest string
		change func(*model.Spec)
	}{
		"tiny-llama3": {"e93f466f293656c0a5a00a79339e7c75", func(s *model.Spec) {
			s.Architecture, s.RMSNormEps, s.RopeTheta = "LlamaForCausalLM", 1e-5, 5e5
			s.RopeScaling = llama3(8)
			s.RopeScaling.OriginalContext = 128
			s.Sampling = model.SamplingDefaults{Temperature: ptr[float32](0.6), TopP: ptr[float32](0.9)}
		}},
		"tiny-mistral": {"29a02c5bb94852a235779a9688d7ad08", func(s *model.Spec) {
			s.Architecture, s.RMSNormEps, s.LayerWindows = "MistralForCausalLM", 1e-5, []int{48, 48}
		}},
		"tiny-qwen2": {"09f3d191aced2b00b8a53726d9955679", func(s *model.Spec) {
			s.Architecture, s.Layers, s.RopeTheta, s.TiedEmbeddings, s.QKVBias, s.LayerWindows = "Qwen2ForCausalLM", 3, 1e6, true, true, []int{0, 40, 40}
			s.Sampling = model.SamplingDefaults{Temperature: ptr[float32](0.7), TopP: ptr[float32](0.8), TopK: ptr(20), RepetitionPenalty: ptr[float32](1.05)}
		}},
		"tiny-qwen3": {"3a6491c04c165e409851191dd8b6969e", func(s *model.Spec) {
			s.Architecture, s.HeadSize, s.RopeTheta, s.TiedEmbeddings, s.QKNorm = "Qwen3ForCausalLM", 32, 1e6, true, true
			s.Sampling = model.SamplingDefaults{Temperature: ptr[float32](0.6), TopP: ptr[float32](0.95), TopK: ptr(20)}
		}},
		"tiny-qwen3-yarn": {"d91d2c56897e9fd3cf6461425949f5d3", func(s *model.Spec) {
			s.Architecture, s.HeadSize, s.RopeTheta, s.QKNorm, s.RopeScaling = "Qwen3ForCausalLM", 32, 1e6, true, yarn(4, 128)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := model.Spec{
				Name: "synthetic", Digest: test.digest, VocabSize: 512, HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadSize: 16, FFNSize: 160,
				ContextTokens: 512, RMSNormEps: 1e-6, RopeTheta: 1e4, WeightType: "bf16", BOS: 510, EOS: []int32{511},
			}
			test.change(&want)
			m := open(t, synthesize(t, preset(t, name), model.SynthOptions{}), model.Options{})
			if diff := cmp.Diff(want, m.Spec()); diff != "" {
				t.Error(diff)
			}
			if want.QKVBias {
				spread(t, m.Layer(0).QBias, 0, 0.2)
			}
			if want.QKNorm {
				spread(t, m.Layer(1).QNorm, 1, 0.05)
			}
		})
	}
}

// TestShapesComeBack: the config.json of any shape is read as that shape.
func TestShapesComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := model.Shape{
			Name: "any", HiddenSize: 8, Layers: rapid.IntRange(1, 4).Draw(t, "layers"), Heads: 2, KVHeads: rapid.IntRange(1, 2).Draw(t, "kv heads"),
			HeadSize: 2 * rapid.IntRange(1, 4).Draw(t, "half head"), FFNSize: 4, VocabSize: 258, ContextTokens: 256, RopeTheta: rapid.Float64Range(1.001, 1e7).Draw(t, "theta"),
			TiedEmbeddings: rapid.Bool().Draw(t, "tied"), Architecture: rapid.SampledFrom(model.Architectures()).Draw(t, "architecture"),
		}
		switch kind := rapid.SampledFrom([]string{"", "linear", "llama3", "yarn"}).Draw(t, "scaling"); kind {
		case "linear":
			shape.RopeScaling = model.RopeScaling{Kind: kind, Factor: 2}
		case "llama3":
			shape.RopeScaling = model.RopeScaling{Kind: kind, Factor: rapid.Float64Range(1, 64).Draw(t, "factor"), OriginalContext: 64, LowFreqFactor: 1, HighFreqFactor: 4}
		case "yarn":
			shape.RopeScaling = model.RopeScaling{Kind: kind, Factor: 4, OriginalContext: 64, BetaFast: 20, AttentionFactor: rapid.Float64Range(0.5, 2).Draw(t, "attention factor")}
		}
		windowed := shape.Architecture != "LlamaForCausalLM" && rapid.Bool().Draw(t, "windowed")
		if windowed {
			shape.Window = rapid.IntRange(1, 255).Draw(t, "window")
		}
		data, err := shape.Config()
		if err != nil {
			t.Fatal(err)
		}
		spec, err := model.ParseConfig(data)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Layers != shape.Layers || spec.KVHeads != shape.KVHeads || spec.HeadSize != shape.HeadSize || spec.ContextTokens != 256 ||
			spec.RopeTheta != shape.RopeTheta || spec.TiedEmbeddings != shape.TiedEmbeddings || spec.Architecture != shape.Architecture {
			t.Fatalf("%+v", spec)
		}
		for layer := range spec.Layers {
			if spec.Window(layer) != shape.Window {
				t.Fatalf("windows %v, want %d", spec.LayerWindows, shape.Window)
			}
		}
		r := spec.RopeScaling
		if !goodScaling(r) || r.Kind != shape.RopeScaling.Kind || r.Factor != shape.RopeScaling.Factor || r.OriginalContext != shape.RopeScaling.OriginalContext ||
			r.Kind == "yarn" && (r.AttentionFactor != shape.RopeScaling.AttentionFactor || r.BetaFast != 20 || r.BetaSlow != 1 || !r.Truncate) {
			t.Fatalf("scaling %+v", r)
		}
	})
}
