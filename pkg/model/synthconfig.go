package model

import (
	"cmp"
	"encoding/json"
)

// configJSON is the config.json of a shape, in the form in which the family's publishers write
// it: by Hugging Face's to_json_string, with sorted keys.
func (s Shape) configJSON() ([]byte, error) {
	config := object{
		"architectures": []string{cmp.Or(s.Architecture, "LlamaForCausalLM")}, "vocab_size": s.VocabSize, "hidden_size": s.HiddenSize, "intermediate_size": s.FFNSize,
		"num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "hidden_act": "silu",
		"max_position_embeddings": s.ContextTokens, "rms_norm_eps": 1e-6, "rope_theta": s.RopeTheta, "tie_word_embeddings": s.TiedEmbeddings,
		"bos_token_id": s.bos(), "eos_token_id": s.eos(), "attention_dropout": 0.0, "initializer_range": 0.02,
		"torch_dtype": "bfloat16", "use_cache": true,
	}
	if s.HeadSize*s.Heads != s.HiddenSize {
		config["head_dim"] = s.HeadSize
	}
	switch s.RopeScaling.Kind {
	case RopeYaRN:
		config["max_position_embeddings"] = s.RopeScaling.OriginalContext
	case RopeLinear:
		config["max_position_embeddings"] = int(float64(s.ContextTokens) / s.RopeScaling.Factor)
	}
	if scaling := s.RopeScaling.config(); scaling != nil {
		config["rope_scaling"] = scaling
	}
	switch s.Architecture {
	case "MistralForCausalLM":
		config["model_type"], config["rms_norm_eps"] = "mistral", 1e-5
		config["sliding_window"] = null(s.Window)
	case "Qwen2ForCausalLM":
		config["model_type"] = "qwen2"
		s.qwenWindows(config, s.ContextTokens)
	case "Qwen3ForCausalLM":
		config["model_type"], config["head_dim"], config["attention_bias"] = "qwen3", s.HeadSize, false
		s.qwenWindows(config, nil)
	default:
		config["model_type"], config["rms_norm_eps"] = "llama", 1e-5
		config["attention_bias"], config["mlp_bias"], config["pretraining_tp"] = false, false, 1
	}
	return json.MarshalIndent(config, "", "  ")
}

// qwenWindows writes Qwen's keys of the sliding window; none is what the publisher
// writes where it is not used.
func (s Shape) qwenWindows(config object, none any) {
	config["use_sliding_window"], config["sliding_window"], config["max_window_layers"] = s.Window > 0, none, s.Layers
	if s.Window > 0 {
		config["sliding_window"], config["max_window_layers"] = s.Window, s.WindowFrom
	}
}

// config is the scaling as rope_scaling has it; nil if there is none.
func (r RopeScaling) config() object {
	if r.Kind == "" {
		return nil
	}
	scaling := object{"rope_type": r.Kind, "factor": r.Factor}
	if r.OriginalContext != 0 {
		scaling["original_max_position_embeddings"] = r.OriginalContext
	}
	for key, value := range map[string]float64{
		"low_freq_factor": r.LowFreqFactor, "high_freq_factor": r.HighFreqFactor,
		"beta_fast": r.BetaFast, "beta_slow": r.BetaSlow, "attention_factor": r.AttentionFactor,
	} {
		if value != 0 {
			scaling[key] = value
		}
	}
	return scaling
}

// null is JSON's for 0.
func null(n int) any {
	if n == 0 {
		return nil
	}
	return n
}
