package model_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
)

// publication is the config.json of a published model, as far as it concerns the
// package or could mislead it, and what it has to be read as.
type publication struct {
	name   string
	config string
	// parameters are as the publisher counts them, to the million.
	parameters int64
	want       model.Spec
}

// published are facts about models that people download.
func published() []publication {
	return []publication{
		{"Llama-2-7b-hf", `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
			"initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,
			"num_key_value_heads":32,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,"tie_word_embeddings":false,"torch_dtype":"float16","use_cache":true,"vocab_size":32000}`, 6738,
			model.Spec{
				Architecture: "LlamaForCausalLM", VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadSize: 128, FFNSize: 11008,
				ContextTokens: 4096, RMSNormEps: 1e-5, RopeTheta: 1e4, WeightType: "f16", BOS: 1, EOS: []int32{2},
			}},
		{"vicuna-7b-v1.5-16k", `{"architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"intermediate_size":11008,
			"max_position_embeddings":4096,"max_sequence_length":16384,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"pad_token_id":0,
			"rms_norm_eps":1e-05,"rope_scaling":{"factor":4.0,"type":"linear"},"tie_word_embeddings":false,"torch_dtype":"float16","vocab_size":32000}`, 6738,
			model.Spec{
				Architecture: "LlamaForCausalLM", VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadSize: 128, FFNSize: 11008,
				ContextTokens: 16384, RMSNormEps: 1e-5, RopeTheta: 1e4, WeightType: "f16", BOS: 1, EOS: []int32{2},
				RopeScaling: model.RopeScaling{Kind: "linear", Factor: 4, AttentionFactor: 1},
			}},
		{"Yarn-Llama-2-7b-64k", `{"architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"intermediate_size":11008,
			"max_position_embeddings":65536,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"rms_norm_eps":1e-05,
			"rope_scaling":{"factor":16.0,"original_max_position_embeddings":4096,"type":"yarn","finetuned":true},"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":32000}`, 6738,
			model.Spec{
				Architecture: "LlamaForCausalLM", VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadSize: 128, FFNSize: 11008,
				ContextTokens: 65536, RMSNormEps: 1e-5, RopeTheta: 1e4, WeightType: "bf16", BOS: 1, EOS: []int32{2},
				RopeScaling: yarn(16, 4096),
			}},
		{"Llama-3.1-8B-Instruct", `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":[128001,128008,128009],
			"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_attention_heads":32,
			"num_hidden_layers":32,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
			"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
			"rope_theta":500000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128256}`, 8030,
			model.Spec{
				Architecture: "LlamaForCausalLM", VocabSize: 128256, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 14336,
				ContextTokens: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, WeightType: "bf16", BOS: 128000, EOS: []int32{128001, 128008, 128009},
				RopeScaling: llama3(8),
			}},
		{"Llama-3.2-1B", `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu",
			"hidden_size":2048,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,
			"num_key_value_heads":8,"rms_norm_eps":1e-05,
			"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
			"rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","vocab_size":128256}`, 1236,
			model.Spec{
				Architecture: "LlamaForCausalLM", VocabSize: 128256, HiddenSize: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadSize: 64, FFNSize: 8192,
				ContextTokens: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, TiedEmbeddings: true, WeightType: "bf16", BOS: 128000, EOS: []int32{128001},
				RopeScaling: llama3(32),
			}},
		{"Mistral-7B-v0.1", `{"architectures":["MistralForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,
			"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
			"rope_theta":10000.0,"sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":32000}`, 7242,
			model.Spec{
				Architecture: "MistralForCausalLM", VocabSize: 32000, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 14336,
				ContextTokens: 32768, RMSNormEps: 1e-5, RopeTheta: 1e4, WeightType: "bf16", BOS: 1, EOS: []int32{2},
				LayerWindows: slices.Repeat([]int{4096}, 32),
			}},
		{"Mistral-7B-Instruct-v0.3", `{"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
			"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,
			"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":32768}`, 7248,
			model.Spec{
				Architecture: "MistralForCausalLM", VocabSize: 32768, HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 14336,
				ContextTokens: 32768, RMSNormEps: 1e-5, RopeTheta: 1e6, WeightType: "bf16", BOS: 1, EOS: []int32{2},
			}},
		{"Mistral-Nemo-Instruct-2407", `{"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"head_dim":128,"hidden_act":"silu",
			"hidden_size":5120,"intermediate_size":14336,"max_position_embeddings":131072,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":40,
			"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":131072}`, 12248,
			model.Spec{
				Architecture: "MistralForCausalLM", VocabSize: 131072, HiddenSize: 5120, Layers: 40, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 14336,
				ContextTokens: 131072, RMSNormEps: 1e-5, RopeTheta: 1e6, WeightType: "bf16", BOS: 1, EOS: []int32{2},
			}},
		{"Qwen2.5-0.5B-Instruct", `{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":896,
			"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":21,"model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,
			"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
			"use_sliding_window":false,"vocab_size":151936}`, 494,
			model.Spec{
				Architecture: "Qwen2ForCausalLM", VocabSize: 151936, HiddenSize: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadSize: 64, FFNSize: 4864,
				ContextTokens: 32768, RMSNormEps: 1e-6, RopeTheta: 1e6, QKVBias: true, TiedEmbeddings: true, WeightType: "bf16", BOS: 151643, EOS: []int32{151645},
			}},
		{"Qwen2.5-7B-Instruct with its model card's YaRN", `{"architectures":["Qwen2ForCausalLM"],"bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":3584,
			"intermediate_size":18944,"max_position_embeddings":32768,"max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,"num_hidden_layers":28,
			"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":131072,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
			"rope_scaling":{"factor":4.0,"original_max_position_embeddings":32768,"type":"yarn"},"use_sliding_window":false,"vocab_size":152064}`, 7616,
			model.Spec{
				Architecture: "Qwen2ForCausalLM", VocabSize: 152064, HiddenSize: 3584, Layers: 28, Heads: 28, KVHeads: 4, HeadSize: 128, FFNSize: 18944,
				ContextTokens: 131072, RMSNormEps: 1e-6, RopeTheta: 1e6, QKVBias: true, WeightType: "bf16", BOS: 151643, EOS: []int32{151645},
				RopeScaling: yarn(4, 32768),
			}},
		{"Qwen2.5-7B-Instruct-1M", `{"architectures":["Qwen2ForCausalLM"],"bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":3584,
			"dual_chunk_attention_config":{"chunk_size":262144,"local_size":8192,"original_max_position_embeddings":262144},
			"intermediate_size":18944,"max_position_embeddings":1010000,"max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,"num_hidden_layers":28,
			"num_key_value_heads":4,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000000.0,"sliding_window":32768,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
			"use_sliding_window":false,"vocab_size":152064}`, 7616,
			model.Spec{
				Architecture: "Qwen2ForCausalLM", VocabSize: 152064, HiddenSize: 3584, Layers: 28, Heads: 28, KVHeads: 4, HeadSize: 128, FFNSize: 18944,
				ContextTokens: 253952, RMSNormEps: 1e-5, RopeTheta: 1e7, QKVBias: true, WeightType: "bf16", BOS: 151643, EOS: []int32{151645},
			}},
		{"Qwen3-0.6B", `{"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"head_dim":128,
			"hidden_act":"silu","hidden_size":1024,"intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,"model_type":"qwen3",
			"num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,
			"tie_word_embeddings":true,"torch_dtype":"bfloat16","use_sliding_window":false,"vocab_size":151936}`, 596,
			model.Spec{
				Architecture: "Qwen3ForCausalLM", VocabSize: 151936, HiddenSize: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadSize: 128, FFNSize: 3072,
				ContextTokens: 40960, RMSNormEps: 1e-6, RopeTheta: 1e6, QKNorm: true, TiedEmbeddings: true, WeightType: "bf16", BOS: 151643, EOS: []int32{151645},
			}},
		{"Qwen3-8B with its model card's YaRN, as newer software writes it", `{"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"bos_token_id":null,"dtype":"bfloat16",
			"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":12288,"max_position_embeddings":40960,"max_window_layers":36,
			"layer_types":["full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
			"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
			"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention",
			"full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention","full_attention"],
			"model_type":"qwen3","num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":8,"pad_token_id":null,"rms_norm_eps":1e-06,
			"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768,"rope_theta":1000000},"sliding_window":null,
			"tie_word_embeddings":false,"use_cache":true,"use_sliding_window":false,"vocab_size":151936}`, 8191,
			model.Spec{
				Architecture: "Qwen3ForCausalLM", VocabSize: 151936, HiddenSize: 4096, Layers: 36, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 12288,
				ContextTokens: 131072, RMSNormEps: 1e-6, RopeTheta: 1e6, QKNorm: true, WeightType: "bf16", BOS: -1, EOS: []int32{151645},
				RopeScaling: yarn(4, 32768),
			}},
	}
}

func yarn(factor float64, original int) model.RopeScaling {
	return model.RopeScaling{
		Kind: "yarn", Factor: factor, OriginalContext: original, BetaFast: 32, BetaSlow: 1, Truncate: true, AttentionFactor: 0.1*math.Log(factor) + 1,
	}
}

func llama3(factor float64) model.RopeScaling {
	return model.RopeScaling{Kind: "llama3", Factor: factor, OriginalContext: 8192, LowFreqFactor: 1, HighFreqFactor: 4, AttentionFactor: 1}
}

// goodScaling: what whoever computes with it may rely on.
func goodScaling(r model.RopeScaling) bool {
	good := r.Factor >= 1 && r.AttentionFactor > 0
	switch r.Kind {
	case "":
		return r == model.RopeScaling{}
	case model.RopeLinear:
		return good
	case model.RopeLlama3:
		return good && r.OriginalContext > 0 && r.LowFreqFactor > 0 && r.HighFreqFactor > r.LowFreqFactor
	case model.RopeYaRN:
		return good && r.OriginalContext > 0 && r.BetaSlow > 0 && r.BetaFast >= r.BetaSlow
	}
	return false
}

func TestPublishedConfigs(t *testing.T) {
	t.Parallel()
	for _, p := range published() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			got, err := model.ParseConfig([]byte(p.config))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(p.want, got); diff != "" {
				t.Error(diff)
			}
			if n := (got.Parameters() + 500_000) / 1_000_000; n != p.parameters {
				t.Errorf("%d million parameters, want %d", n, p.parameters)
			}
			if !goodScaling(got.RopeScaling) {
				t.Errorf("scaling %+v", got.RopeScaling)
			}
		})
	}
}

// TestPublishedElsewhere: models that are refused, and what the message says.
func TestPublishedElsewhere(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, config, field, says string }{
		{"Mixtral-8x7B", `{"architectures":["MixtralForCausalLM"],"model_type":"mixtral"}`, "architectures", "mixture of experts"},
		{"Qwen3-30B-A3B", `{"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe"}`, "architectures", "mixture of experts"},
		{"Qwen1.5-MoE", `{"architectures":["Qwen2MoeForCausalLM"],"model_type":"qwen2_moe"}`, "architectures", "mixture of experts"},
		{"Llama-4-Scout", `{"architectures":["Llama4ForConditionalGeneration"],"model_type":"llama4"}`, "architectures", "mixture of experts"},
		{"Qwen2-VL", `{"architectures":["Qwen2VLForConditionalGeneration"],"model_type":"qwen2_vl"}`, "architectures", "images"},
		{"Mistral-Small-3.1", `{"architectures":["Mistral3ForConditionalGeneration"],"model_type":"mistral3"}`, "architectures", "more than text"},
		{"a reward model", `{"architectures":["Qwen2ForRewardModel"],"model_type":"qwen2"}`, "architectures", "generates no text"},
		{"Gemma-2", `{"architectures":["Gemma2ForCausalLM"],"model_type":"gemma2"}`, "architectures", "Qwen3ForCausalLM"},
		{"Qwen2-VL's text part by another name", `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2_vl_text"}`, "model_type", "qwen2_vl_text"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var fields map[string]any
			if err := json.Unmarshal([]byte(test.config), &fields); err != nil {
				t.Fatal(err)
			}
			_, err := model.ParseConfig([]byte(test.config))
			refusal{file: "config.json", field: test.field, says: test.says}.check(t, err)
			var indented bytes.Buffer // as they are published
			if err := json.Indent(&indented, []byte(test.config), "", "  "); err != nil {
				t.Fatal(err)
			}
			_, err = model.ParseConfig(indented.Bytes())
			refusal{file: "config.json", field: test.field, says: test.says}.check(t, err)
		})
	}
}

// TestLongValueIsCut: a value is shown in part, and whole characters of it.
func TestLongValueIsCut(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "x"} {
		_, err := model.ParseConfig([]byte(`{"architectures":["` + before + strings.Repeat("ä", 100) + `"]}`))
		if err == nil || !utf8.ValidString(err.Error()) || !strings.Contains(err.Error(), "ä...") {
			t.Errorf("%q", err)
		}
	}
}
