package model_test

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
)

// edited is the good configuration with some fields replaced; a nil value is
// null, absent takes the field out.
func edited(t *testing.T, changes map[string]any) []byte {
	t.Helper()
	config := maps.Clone(newCheckpoint("BF16").config)
	for key, value := range changes {
		if value == absent {
			delete(config, key)
			continue
		}
		config[key] = value
	}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// absent marks a field to leave out.
var absent = new(int)

func TestParseConfig(t *testing.T) {
	t.Parallel()
	base := model.Spec{
		Architecture: "LlamaForCausalLM", VocabSize: vocab, HiddenSize: hidden, Layers: layers, Heads: heads, KVHeads: kvHeads,
		HeadSize: headSize, FFNSize: ffn, ContextTokens: 64, RMSNormEps: 1e-5, RopeTheta: 5e5, WeightType: "bf16", BOS: 1, EOS: []int32{2},
	}
	for _, test := range []struct {
		name    string
		changes map[string]any
		want    func(*model.Spec)
	}{
		{"as it is", nil, func(*model.Spec) {}},
		{"defaults", map[string]any{
			"num_key_value_heads": absent, "head_dim": absent, "hidden_act": absent, "max_position_embeddings": absent, "rms_norm_eps": absent,
			"rope_theta": absent, "rope_scaling": absent, "tie_word_embeddings": absent, "bos_token_id": absent, "eos_token_id": absent,
			"torch_dtype": absent, "model_type": absent,
		}, func(s *model.Spec) {
			s.KVHeads, s.HeadSize, s.ContextTokens, s.RMSNormEps, s.RopeTheta, s.WeightType = heads, hidden/heads, 2048, 1e-6, 1e4, ""
		}},
		{"no tokens", map[string]any{"bos_token_id": nil, "eos_token_id": nil}, func(s *model.Spec) { s.BOS, s.EOS = -1, nil }},
		{"several ends, one twice", map[string]any{"eos_token_id": []int{5, 2, 5}}, func(s *model.Spec) { s.EOS = []int32{5, 2} }},
		{"start in a list", map[string]any{"bos_token_id": []int{4}}, func(s *model.Spec) { s.BOS = 4 }},
		{"tied", map[string]any{"tie_word_embeddings": true}, func(s *model.Spec) { s.TiedEmbeddings = true }},
		{"newer names", map[string]any{
			"torch_dtype": absent, "dtype": "float16", "rope_theta": absent, "rope_scaling": absent,
			"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 7e4},
		}, func(s *model.Spec) { s.WeightType, s.RopeTheta = "f16", 7e4 }},
		{"scaling that scales nothing", map[string]any{"rope_scaling": map[string]any{"rope_type": "default"}}, func(*model.Spec) {}},
		{"no quantization", map[string]any{"quantization_config": nil}, func(*model.Spec) {}},
		{"fields of other software", map[string]any{"pretraining_tp": 1, "_name_or_path": "x", "Hidden_Size": 3}, func(*model.Spec) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := model.ParseConfig(edited(t, test.changes))
			if err != nil {
				t.Fatal(err)
			}
			want := base
			test.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefusedConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		changes map[string]any
		field   string
		says    string
	}{
		{"another architecture", map[string]any{"architectures": []string{"MixtralForCausalLM"}}, "architectures", "MixtralForCausalLM"},
		{"two architectures", map[string]any{"architectures": []string{"LlamaForCausalLM", "X"}}, "architectures", "not supported"},
		{"no architecture", map[string]any{"architectures": absent}, "architectures", "is missing"},
		{"architecture in a string", map[string]any{"architectures": "LlamaForCausalLM"}, "architectures", "not a list"},
		{"another type", map[string]any{"model_type": "mistral"}, "model_type", `"mistral" does not match LlamaForCausalLM, which has "llama"`},
		{"scaled positions, no name", map[string]any{"rope_scaling": map[string]any{"factor": 2}}, "rope_scaling", "rope_type"},
		{"scaled positions, a number", map[string]any{"rope_scaling": 2}, "rope_scaling", "not an object"},
		{"attention bias", map[string]any{"attention_bias": true}, "attention_bias", "not supported"},
		{"feed-forward bias", map[string]any{"mlp_bias": true}, "mlp_bias", "not supported"},
		{"bias in words", map[string]any{"mlp_bias": "no"}, "mlp_bias", "neither true nor false"},
		{"another activation", map[string]any{"hidden_act": "gelu"}, "hidden_act", `"gelu"`},
		{"quantized", map[string]any{"quantization_config": map[string]any{"quant_method": "gptq"}}, "quantization_config", "gptq"},
		{"rotary embedding of a part", map[string]any{"partial_rotary_factor": 0.5}, "partial_rotary_factor", "0.5"},
		{"no width", map[string]any{"hidden_size": absent}, "hidden_size", "is missing"},
		{"null width", map[string]any{"hidden_size": nil}, "hidden_size", "is missing"},
		{"width in words", map[string]any{"hidden_size": "eight"}, "hidden_size", "not an integer"},
		{"half a layer", map[string]any{"num_hidden_layers": 1.5}, "num_hidden_layers", "not an integer"},
		{"no layers", map[string]any{"num_hidden_layers": 0}, "num_hidden_layers", "not between"},
		{"negative width", map[string]any{"intermediate_size": -1}, "intermediate_size", "not between"},
		{"endless layers", map[string]any{"num_hidden_layers": 1 << 40}, "num_hidden_layers", "not between"},
		{"vocabulary too large", map[string]any{"vocab_size": 1<<22 + 1}, "vocab_size", "not between 1 and 4194304"},
		{"heads of odd size", map[string]any{"head_dim": 3}, "head_dim", "even"},
		{"heads of odd size, derived", map[string]any{"head_dim": absent, "hidden_size": 6}, "head_dim", "even"},
		{"heads that do not divide", map[string]any{"head_dim": absent, "hidden_size": 7}, "head_dim", "not a multiple"},
		{"groups that do not divide", map[string]any{"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads", "not a multiple"},
		{"more groups than heads", map[string]any{"num_key_value_heads": 4}, "num_key_value_heads", "not a multiple"},
		{"no context", map[string]any{"max_position_embeddings": 0}, "max_position_embeddings", "not between"},
		{"no epsilon", map[string]any{"rms_norm_eps": 0}, "rms_norm_eps", "between 0 and 1"},
		{"epsilon that is nothing in float32", map[string]any{"rms_norm_eps": 1e-60}, "rms_norm_eps", "between 0 and 1"},
		{"negative epsilon", map[string]any{"rms_norm_eps": -1e-5}, "rms_norm_eps", "between 0 and 1"},
		{"epsilon in words", map[string]any{"rms_norm_eps": "NaN"}, "rms_norm_eps", "not a finite number"},
		{"epsilon out of range", map[string]any{"rms_norm_eps": json.RawMessage("1e999")}, "rms_norm_eps", "not a finite number"},
		{"no theta", map[string]any{"rope_theta": 0}, "rope_theta", "not above 1"},
		{"a theta that turns nothing", map[string]any{"rope_theta": 1}, "rope_theta", "not above 1"},
		{"a theta near 0", map[string]any{"rope_theta": 1e-300}, "rope_theta", "not above 1"},
		{"start outside of the vocabulary", map[string]any{"bos_token_id": vocab}, "bos_token_id", "not below vocab_size"},
		{"two starts", map[string]any{"bos_token_id": []int{1, 2}}, "bos_token_id", "more than one"},
		{"negative end", map[string]any{"eos_token_id": []int{2, -1}}, "eos_token_id", "not below vocab_size"},
		{"end in words", map[string]any{"eos_token_id": "</s>"}, "eos_token_id", "neither a token id"},
		{"ends in lists of lists", map[string]any{"eos_token_id": [][]int{{2}}}, "eos_token_id", "neither a token id"},
		{"endless ends", map[string]any{"eos_token_id": make([]int, 2000)}, "eos_token_id", "more than 1024"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := model.ParseConfig(edited(t, test.changes))
			refusal{file: "config.json", field: test.field, says: test.says}.check(t, err)
		})
	}
}

func TestRefusedConfigText(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                       "not valid JSON",
		"null":                   "null",
		"[]":                     "not a JSON object",
		`{"rms_norm_eps": NaN}`:  "not valid JSON at byte",
		strings.Repeat("[", 1e5): "exceeded max depth",
	} {
		_, err := model.ParseConfig([]byte(text))
		refusal{file: "config.json", says: says}.check(t, err)
	}
}

func FuzzParseConfig(f *testing.F) {
	good, err := json.Marshal(newCheckpoint("BF16").config)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"vocab_size":1,"hidden_size":2,"intermediate_size":1,"num_hidden_layers":1,"num_attention_heads":1}`))
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"rope_parameters":{"rope_theta":1}}`))
	for _, p := range published() {
		f.Add([]byte(p.config))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := model.ParseConfig(data)
		if err != nil {
			var is *model.Error
			if !errors.As(err, &is) || len(err.Error()) > 2000 {
				t.Fatalf("error of %d bytes: %v", len(err.Error()), err)
			}
			return
		}
		if spec.LayerWindows != nil && len(spec.LayerWindows) != spec.Layers || !goodScaling(spec.RopeScaling) {
			t.Fatalf("accepted windows %v, scaling %+v", spec.LayerWindows, spec.RopeScaling)
		}
		if spec.Parameters() <= 0 || spec.Heads%spec.KVHeads != 0 || spec.HeadSize%2 != 0 || !(spec.RMSNormEps > 0) || !(spec.RopeTheta > 0) || spec.ContextTokens < 1 {
			t.Fatalf("accepted %+v", spec)
		}
		for _, id := range append(spec.EOS, max(spec.BOS, 0)) {
			if id < 0 || int(id) >= spec.VocabSize {
				t.Fatalf("token %d of %d", id, spec.VocabSize)
			}
		}
	})
}
