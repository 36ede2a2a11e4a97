package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
)

// modelTypes are the families, as config.json names them.
func modelTypes() map[string]string {
	return map[string]string{
		"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
	}
}

// changed is edited of another family.
func changed(t *testing.T, architecture string, changes map[string]any) []byte {
	t.Helper()
	all := map[string]any{"architectures": []string{architecture}, "model_type": modelTypes()[architecture]}
	for key, value := range changes {
		all[key] = value
	}
	return edited(t, all)
}

// TestFamilyDefaults: what a file leaves out is what the class takes, and null is
// not the same as absent.
func TestFamilyDefaults(t *testing.T) {
	t.Parallel()
	least := map[string]any{
		"num_attention_heads": 32, "hidden_size": 128, "num_key_value_heads": absent, "head_dim": absent, "hidden_act": absent, "max_position_embeddings": absent,
		"rms_norm_eps": absent, "rope_theta": absent, "rope_scaling": absent, "tie_word_embeddings": absent, "bos_token_id": absent, "eos_token_id": absent,
		"torch_dtype": absent, "model_type": absent,
	}
	for _, test := range []struct {
		architecture               string
		kvHeads, headSize, context int
		bos                        int32
		eos                        []int32
		windows                    []int
	}{
		{"LlamaForCausalLM", 32, 4, 2048, 1, []int32{2}, nil},
		{"MistralForCausalLM", 8, 4, 131072, 1, []int32{2}, []int{4096, 4096}},
		{"Qwen2ForCausalLM", 32, 4, 32768, -1, nil, nil},
		{"Qwen3ForCausalLM", 32, 128, 32768, -1, nil, nil},
	} {
		t.Run(test.architecture, func(t *testing.T) {
			t.Parallel()
			want := model.Spec{
				Architecture: test.architecture, VocabSize: vocab, HiddenSize: 128, Layers: layers, Heads: 32, KVHeads: test.kvHeads, HeadSize: test.headSize,
				FFNSize: ffn, ContextTokens: test.context, RMSNormEps: 1e-6, RopeTheta: 1e4, BOS: test.bos, EOS: test.eos, LayerWindows: test.windows,
				QKVBias: test.architecture == "Qwen2ForCausalLM", QKNorm: test.architecture == "Qwen3ForCausalLM",
			}
			got, err := model.ParseConfig(changed(t, test.architecture, least))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if got.Family() != modelTypes()[test.architecture] {
				t.Errorf("family %q", got.Family())
			}
			nulls := map[string]any{"head_dim": nil, "num_key_value_heads": nil, "sliding_window": nil}
			for key, value := range least {
				if _, null := nulls[key]; !null {
					nulls[key] = value
				}
			}
			if got, err = model.ParseConfig(changed(t, test.architecture, nulls)); err != nil || got.KVHeads != 32 || got.HeadSize != 4 || got.LayerWindows != nil {
				t.Errorf("nulls: %d KV heads of %d, windows %v: %v", got.KVHeads, got.HeadSize, got.LayerWindows, err)
			}
		})
	}
	if len(model.Architectures()) != len(modelTypes()) {
		t.Errorf("architectures %v", model.Architectures())
	}
}

// TestRopeScaling: forms of files, old and new, and what they leave out.
func TestRopeScaling(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	for _, test := range []struct {
		name    string
		changes object
		want    model.RopeScaling
		context int // of 64
	}{
		{"none, said in the new way", object{"rope_theta": absent, "rope_parameters": object{"rope_type": "default", "rope_theta": 5e5}}, model.RopeScaling{}, 64},
		{"none, said twice", object{"rope_scaling": object{}, "rope_parameters": object{"rope_theta": 5e5}}, model.RopeScaling{}, 64},
		{"linear", object{"rope_scaling": object{"type": "linear", "factor": 2.5}}, model.RopeScaling{Kind: "linear", Factor: 2.5, AttentionFactor: 1}, 160},
		{"old and new name", object{"rope_scaling": object{"type": "linear", "rope_type": "linear", "factor": 2}}, model.RopeScaling{Kind: "linear", Factor: 2, AttentionFactor: 1}, 128},
		{"llama3", object{"rope_scaling": object{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16}},
			model.RopeScaling{Kind: "llama3", Factor: 8, OriginalContext: 16, LowFreqFactor: 1, HighFreqFactor: 4, AttentionFactor: 1}, 64},
		{"yarn", object{"rope_scaling": object{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32}}, yarn(4, 32), 128},
		{"yarn without the original context", object{"rope_scaling": object{"type": "yarn", "factor": 4}}, yarn(4, 64), 256},
		{"yarn with the original context beside it", object{"original_max_position_embeddings": 16, "rope_scaling": object{"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}}, yarn(4, 16), 64},
		{"yarn whose factor follows", object{"rope_parameters": object{"rope_type": "yarn", "factor": nil, "original_max_position_embeddings": 16, "rope_theta": 5e5}}, yarn(4, 16), 64},
		{"yarn that does not stretch", object{"rope_scaling": object{"type": "yarn", "factor": 1}}, yarn(1, 64), 64},
		{"yarn with everything", object{"rope_scaling": object{
			"type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.5, "truncate": false, "finetuned": true,
		}}, model.RopeScaling{Kind: "yarn", Factor: 4, OriginalContext: 32, BetaFast: 16, BetaSlow: 2, AttentionFactor: 0.5}, 128},
		{"yarn of two scales", object{"rope_scaling": object{"type": "yarn", "factor": 40, "original_max_position_embeddings": 32, "mscale": 1, "mscale_all_dim": 0.5, "beta_fast": 0}},
			model.RopeScaling{Kind: "yarn", Factor: 40, OriginalContext: 32, BetaFast: 32, BetaSlow: 1, Truncate: true,
				AttentionFactor: (0.1*math.Log(40) + 1) / (0.1*0.5*math.Log(40) + 1)}, 1280},
		{"yarn of two equal scales", object{"rope_scaling": object{"type": "yarn", "factor": 40, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 0.7}},
			model.RopeScaling{Kind: "yarn", Factor: 40, OriginalContext: 32, BetaFast: 32, BetaSlow: 1, Truncate: true, AttentionFactor: 1}, 1280},
		{"yarn of one scale, which does not count", object{"rope_scaling": object{"type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "mscale": 3}}, yarn(4, 32), 128},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := model.ParseConfig(edited(t, test.changes))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.RopeScaling); diff != "" || got.ContextTokens != test.context || got.RopeTheta != 5e5 {
				t.Errorf("context %d, base %g: %s", got.ContextTokens, got.RopeTheta, diff)
			}
		})
	}
}

func TestRefusedRopeScaling(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ group, field, says string }{
		{`{"rope_type":"dynamic","factor":2}`, "rope_scaling.rope_type", `"dynamic" is not supported`},
		{`{"type":"dynamic","factor":2}`, "rope_scaling.type", `"dynamic" is not supported`},
		{`{"rope_type":"longrope","short_factor":[1],"long_factor":[1]}`, "rope_scaling.rope_type", `"longrope" is not supported`},
		{`{"type":"su","short_factor":[1],"long_factor":[1]}`, "rope_scaling.type", `"su" is not supported`},
		{`{"type":"mrope","mrope_section":[16,24,24]}`, "rope_scaling.type", `"mrope" is not supported`},
		{`{"rope_type":"default","mrope_section":[16,24,24]}`, "rope_scaling.mrope_section", "not supported"},
		{`{"rope_type":"proportional"}`, "rope_scaling.rope_type", `"proportional" is not supported`},
		{`{"rope_type":"linear","type":"yarn","factor":2}`, "rope_scaling.type", `contradicts rope_type "linear"`},
		{`{"full_attention":{"rope_type":"default"},"sliding_attention":{"rope_type":"default"}}`, "rope_scaling", "each kind of layer"},
		{`{"rope_type":2}`, "rope_scaling.rope_type", "not a string"},
		{`{"rope_type":"linear"}`, "rope_scaling.factor", "is missing"},
		{`{"rope_type":"linear","factor":0.5}`, "rope_scaling.factor", "not between 1 and"},
		{`{"rope_type":"linear","factor":1e9}`, "rope_scaling.factor", "not between 1 and"},
		{`{"rope_type":"linear","factor":"2"}`, "rope_scaling.factor", "not a finite number"},
		{`{"rope_type":"linear","factor":1048576,"rope_theta":2}`, "max_position_embeddings", ""},
		{`{"rope_type":"linear","factor":2,"partial_rotary_factor":0.5}`, "rope_scaling.partial_rotary_factor", "only 1"},
		{`{"rope_type":"linear","factor":2,"rope_theta":-1}`, "rope_scaling.rope_theta", "not above 1"},
		{`{"rope_type":"yarn","factor":4,"rope_theta":1}`, "rope_scaling.rope_theta", "not above 1"},
		{`{"rope_type":"llama3","factor":8}`, "rope_scaling.low_freq_factor", "is missing"},
		{`{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1}`, "rope_scaling.high_freq_factor", "not above low_freq_factor 4"},
		{`{"rope_type":"llama3","factor":8,"low_freq_factor":0,"high_freq_factor":1}`, "rope_scaling.low_freq_factor", "not above 0"},
		{`{"rope_type":"yarn","original_max_position_embeddings":16}`, "rope_scaling.factor", "is missing"},
		{`{"rope_type":"yarn","factor":2,"original_max_position_embeddings":0}`, "rope_scaling.original_max_position_embeddings", "not between"},
		{`{"rope_type":"yarn","factor":2,"beta_fast":1,"beta_slow":2}`, "rope_scaling.beta_fast", "below beta_slow 2"},
		{`{"rope_type":"yarn","factor":2,"beta_slow":-1}`, "rope_scaling.beta_slow", "not between"},
		{`{"rope_type":"yarn","factor":2,"attention_factor":0}`, "rope_scaling.attention_factor", "not above 0"},
		{`{"rope_type":"yarn","factor":2,"mscale":1,"mscale_all_dim":-100}`, "rope_scaling.attention_factor", "mscale_all_dim"},
		{`{"rope_type":"yarn","factor":2,"truncate":"no"}`, "rope_scaling.truncate", "neither true nor false"},
		{`{"rope_type":"yarn","factor":2,"attn_factor":2}`, "rope_scaling.attn_factor", "not supported"},
	} {
		t.Run(test.group, func(t *testing.T) {
			t.Parallel()
			_, err := model.ParseConfig(edited(t, map[string]any{"rope_scaling": json.RawMessage(test.group), "max_position_embeddings": 65}))
			refusal{file: "config.json", field: test.field, says: test.says}.check(t, err)
		})
	}
}

// TestWindows: which layers see how far.
func TestWindows(t *testing.T) {
	t.Parallel()
	types := func(kinds ...string) []string { return kinds }
	const full, sliding = "full_attention", "sliding_attention"
	const llama, mistral, qwen2, qwen3 = "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
	type object = map[string]any
	for _, test := range []struct {
		name, architecture string
		changes            object
		want               []int
		field, says        string // if it is refused
	}{
		{"mistral", mistral, object{"sliding_window": 16}, []int{16, 16}, "", ""},
		{"mistral without", mistral, object{"sliding_window": nil}, nil, "", ""},
		{"mistral, as long as the context", mistral, object{"sliding_window": 64}, nil, "", ""},
		{"mistral, longer than the context", mistral, object{"sliding_window": 4096}, nil, "", ""},
		{"mistral, of a context that scaling makes longer", mistral, object{"sliding_window": 64, "rope_scaling": object{"type": "linear", "factor": 2}}, []int{64, 64}, "", ""},
		{"mistral with layer types that agree", mistral, object{"sliding_window": 16, "layer_types": types(sliding, sliding)}, []int{16, 16}, "", ""},
		{"mistral with two kinds of layers", mistral, object{"sliding_window": 16, "layer_types": types(full, sliding)}, nil, "layer_types", "only one kind of layer"},
		{"mistral, no window at all", mistral, object{"sliding_window": 0}, nil, "sliding_window", "not between 1"},
		{"qwen that does not use it", qwen2, object{"sliding_window": 16, "use_sliding_window": false, "max_window_layers": 0}, nil, "", ""},
		{"qwen that says nothing", qwen3, object{"sliding_window": 16, "max_window_layers": 0}, nil, "", ""},
		{"qwen, all layers", qwen2, object{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 0}, []int{16, 16}, "", ""},
		{"qwen, the upper layer", qwen3, object{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 1}, []int{0, 16}, "", ""},
		{"qwen, no layer", qwen2, object{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 2}, nil, "", ""},
		{"qwen, 28 layers by default", qwen2, object{"sliding_window": 16, "use_sliding_window": true}, nil, "", ""},
		{"qwen, null window", qwen2, object{"sliding_window": nil, "use_sliding_window": true, "max_window_layers": 0}, nil, "", ""},
		{"qwen, layer types count", qwen3, object{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 2, "layer_types": types(sliding, full)}, []int{16, 0}, "", ""},
		{"qwen, layer types without a window", qwen3, object{"layer_types": types(sliding, full)}, nil, "layer_types", "turn the window off"},
		{"too few layer types", qwen3, object{"layer_types": types(full)}, nil, "layer_types", "1 layers, but num_hidden_layers is 2"},
		{"layer types of another model", qwen3, object{"layer_types": types(full, "chunked_attention")}, nil, "layer_types", `"chunked_attention" is not supported`},
		{"layer types in a string", qwen3, object{"layer_types": full}, nil, "layer_types", "not a list"},
		{"llama with layer types", llama, object{"layer_types": types(full, full)}, nil, "", ""},
		{"llama with a window", llama, object{"sliding_window": 16}, nil, "sliding_window", "not known to LlamaForCausalLM"},
		{"llama with a window that is not used", llama, object{"sliding_window": 16, "use_sliding_window": false}, nil, "", ""},
		{"llama with sliding layers", llama, object{"layer_types": types(full, sliding)}, nil, "layer_types", "not known to LlamaForCausalLM"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := model.ParseConfig(changed(t, test.architecture, test.changes))
			if test.field != "" {
				refusal{file: "config.json", field: test.field, says: test.says}.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.LayerWindows); diff != "" {
				t.Error(diff)
			}
			for layer := range layers {
				if got.LayerWindows != nil && got.Window(layer) != test.want[layer] || got.LayerWindows == nil && got.Window(layer) != 0 {
					t.Errorf("layer %d sees %d", layer, got.Window(layer))
				}
			}
		})
	}
}

// TestBiasKeys: Qwen2's class does not look at attention_bias, the others would.
func TestBiasKeys(t *testing.T) {
	t.Parallel()
	for architecture := range modelTypes() {
		_, err := model.ParseConfig(changed(t, architecture, map[string]any{"attention_bias": true}))
		if architecture == "Qwen2ForCausalLM" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		refusal{file: "config.json", field: "attention_bias", says: "output projection would have a bias"}.check(t, err)
	}
}

// newFamilyCheckpoint is newCheckpoint of another family, in bf16.
func newFamilyCheckpoint(architecture string) *checkpoint {
	c := newCheckpoint("BF16")
	c.config["architectures"], c.config["model_type"] = []string{architecture}, modelTypes()[architecture]
	c.config["sliding_window"] = nil
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range layers {
		at := slices.IndexFunc(c.tensors, func(s stored) bool { return s.name == fmt.Sprintf("model.layers.%d.self_attn.v_proj.weight", i) }) + 1
		p := fmt.Sprintf("model.layers.%d.self_attn.", i)
		switch architecture {
		case "Qwen2ForCausalLM":
			c.tensors = slices.Insert(c.tensors, at, random(rng, p+"q_proj.bias", "BF16", heads*headSize),
				random(rng, p+"k_proj.bias", "F32", kvHeads*headSize), random(rng, p+"v_proj.bias", "F16", kvHeads*headSize))
		case "Qwen3ForCausalLM":
			c.tensors = slices.Insert(c.tensors, at, random(rng, p+"q_norm.weight", "F32", headSize), random(rng, p+"k_norm.weight", "BF16", headSize))
		}
	}
	return c
}

// TestOpenFamilies: every weight of each family is where LayerWeights says, of
// whatever type it is.
func TestOpenFamilies(t *testing.T) {
	t.Parallel()
	for architecture := range modelTypes() {
		t.Run(architecture, func(t *testing.T) {
			t.Parallel()
			c := newFamilyCheckpoint(architecture)
			m := open(t, c.write(t), model.Options{})
			if m.Spec().Parameters()*2 < c.bytes()/2 || len(tensors(m)) != len(c.tensors) {
				t.Fatalf("%d parameters in %d bytes, %d tensors of %d", m.Spec().Parameters(), c.bytes(), len(tensors(m)), len(c.tensors))
			}
			for i, got := range tensors(m) {
				if want := c.tensors[i]; got.Name != want.name || !slices.Equal(got.Data, want.data) {
					t.Errorf("tensor %d is %s, not %s", i, got.Name, want.name)
				}
			}
			l := m.Layer(1)
			for name, tensor := range map[string]model.Tensor{"QBias": l.QBias, "KBias": l.KBias, "VBias": l.VBias, "QNorm": l.QNorm, "KNorm": l.KNorm} {
				if (tensor.Data == nil) == (name[1:] == "Bias" && m.Spec().QKVBias || name[1:] == "Norm" && m.Spec().QKNorm) {
					t.Errorf("%s: %d bytes", name, len(tensor.Data))
				}
			}
		})
	}
}

// bytes are those of all weights.
func (c *checkpoint) bytes() (n int64) {
	for _, s := range c.tensors {
		n += int64(len(s.data))
	}
	return n
}

// TestRefusedFamilyTensors: what one family has and another has not.
func TestRefusedFamilyTensors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, architecture, tensor, says string
		spoil                            func(*testing.T, *checkpoint)
	}{
		{"no bias", "Qwen2ForCausalLM", "model.layers.1.self_attn.k_proj.bias", "is missing",
			func(_ *testing.T, c *checkpoint) { c.drop("model.layers.1.self_attn.k_proj.bias") }},
		{"no norm", "Qwen3ForCausalLM", "model.layers.0.self_attn.q_norm.weight", "is missing",
			func(_ *testing.T, c *checkpoint) { c.drop("model.layers.0.self_attn.q_norm.weight") }},
		{"norm over all heads", "Qwen3ForCausalLM", "model.layers.0.self_attn.q_norm.weight", "shape [12], but config.json asks for [6]",
			func(t *testing.T, c *checkpoint) {
				*c.tensor(t, "model.layers.0.self_attn.q_norm.weight") = stored{"model.layers.0.self_attn.q_norm.weight", "BF16", []int{12}, make([]byte, 24)}
			}},
		{"bias of the output", "Qwen2ForCausalLM", "model.layers.0.self_attn.o_proj.bias", "is no part of a Qwen2ForCausalLM",
			func(_ *testing.T, c *checkpoint) {
				c.tensors = append(c.tensors, stored{"model.layers.0.self_attn.o_proj.bias", "BF16", []int{hidden}, make([]byte, 2*hidden)})
			}},
		{"bias in integers", "Qwen2ForCausalLM", "model.layers.0.self_attn.q_proj.bias", "element type I16 is not supported",
			func(t *testing.T, c *checkpoint) { c.tensor(t, "model.layers.0.self_attn.q_proj.bias").dtype = "I16" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newFamilyCheckpoint(test.architecture)
			test.spoil(t, c)
			_, err := model.Open(c.write(t), model.Options{})
			refusal{file: "model.safetensors", tensor: test.tensor, says: test.says}.check(t, err)
		})
	}
}
