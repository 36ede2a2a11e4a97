package model

import (
	"encoding/json"
	"strings"
)

// family is one architecture that this package reads: the name of its Hugging
// Face class, and what that class's configuration takes for granted.
type family struct {
	architecture, modelType string
	// kvHeads and headSize stand for keys that are absent; 0: as many as there are
	// heads, and the width divided by the heads.
	kvHeads, headSize int
	// context stands for an absent max_position_embeddings.
	context int
	// bos and eos stand for absent keys; -1: none.
	bos, eos int32
	// qkvBias: the projections have biases whatever the file says; attention_bias
	// is then no key of the class.
	qkvBias bool
	qkNorm  bool
	// windows reads which layers see how far.
	windows func(fields, *Spec)
}

// families are all that is supported, the names of their classes with Hugging
// Face's defaults (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config).
func families() []family {
	return []family{
		{architecture: "LlamaForCausalLM", modelType: "llama", context: 2048, bos: 1, eos: 2, windows: fields.readNoWindows},
		{architecture: "MistralForCausalLM", modelType: "mistral", kvHeads: 8, context: 131072, bos: 1, eos: 2, windows: fields.readOneWindow},
		{architecture: "Qwen2ForCausalLM", modelType: "qwen2", kvHeads: 32, context: 32768, bos: -1, eos: -1, qkvBias: true, windows: fields.readUpperWindows},
		{architecture: "Qwen3ForCausalLM", modelType: "qwen3", kvHeads: 32, headSize: 128, context: 32768, bos: -1, eos: -1, qkNorm: true, windows: fields.readUpperWindows},
	}
}

// architectures are the class names that parseConfig accepts.
func architectures() []string {
	var names []string
	for _, one := range families() {
		names = append(names, one.architecture)
	}
	return names
}

// Family is the architecture's short name, Hugging Face's model_type: "llama",
// "mistral", "qwen2" or "qwen3". Empty for an architecture that is none of ours.
func (s Spec) Family() string {
	for _, one := range families() {
		if one.architecture == s.Architecture {
			return one.modelType
		}
	}
	return ""
}

// family finds out which one the file is of.
func (f fields) family() (family, error) {
	remedy := "use a dense text model: " + strings.Join(architectures(), ", ")
	var names []string
	err := json.Unmarshal(f.values["architectures"], &names)
	switch {
	case !f.has("architectures"):
		f.bad("architectures", "is missing", remedy)
	case err != nil:
		f.bad("architectures", f.shown("architectures")+" is not a list of names", remedy)
	case len(names) != 1:
		f.bad("architectures", f.shown("architectures")+" is not supported", remedy)
	default:
		for _, one := range families() {
			if names[0] != one.architecture {
				continue
			}
			if kind := f.textOr("model_type", one.modelType); kind != one.modelType {
				f.bad("model_type", clip(kind)+" does not match "+one.architecture+", which has "+clip(one.modelType),
					"use the publisher's config.json unchanged")
			}
			return one, *f.err
		}
		f.bad("architectures", f.shown("architectures")+" is not supported"+whyNot(names[0]), remedy)
	}
	return family{}, *f.err
}

// whyNot says what sets an architecture apart, as far as its name tells.
func whyNot(architecture string) string {
	for _, known := range []struct{ part, why string }{
		{"Moe", "a mixture of experts"},
		{"MoE", "a mixture of experts"},
		{"Mixtral", "a mixture of experts"},
		{"DeepseekV", "a mixture of experts"},
		{"Llama4", "a mixture of experts that takes images"},
		{"VL", "it takes images"},
		{"ForConditionalGeneration", "it takes more than text"},
		{"ForSequenceClassification", "it generates no text"},
		{"ForRewardModel", "it generates no text"},
		{"ForTokenClassification", "it generates no text"},
		{"Mamba", "it has no attention to cache"},
	} {
		if strings.Contains(architecture, known.part) {
			return " (" + known.why + ")"
		}
	}
	return ""
}
