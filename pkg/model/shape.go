package model

import (
	"fmt"
	"strings"
)

// Shape is what a synthetic model looks like. Weights are bf16.
type Shape struct {
	// Name is the preset's, for messages.
	Name string
	// HiddenSize, Layers, Heads, KVHeads, HeadSize, FFNSize, VocabSize and
	// ContextTokens are as in Spec.
	HiddenSize, Layers, Heads, KVHeads, HeadSize, FFNSize, VocabSize, ContextTokens int
	// RopeTheta is the base of the rotary embedding.
	RopeTheta float64
	// TiedEmbeddings: no output matrix is written.
	TiedEmbeddings bool
	// Architecture is a class name that config.json may have; empty means LlamaForCausalLM.
	Architecture string
	// RopeScaling is as in Spec; zeros are left to the defaults of whoever reads it.
	RopeScaling RopeScaling
	// Window is the sliding window in tokens, of Mistral's every layer, of Qwen's
	// from WindowFrom on; 0: every layer sees all.
	Window, WindowFrom int
	// Sampling is what generation_config.json says.
	Sampling SamplingDefaults
}

// Presets are the shapes that people compare by name, and small ones for tests: one
// of each family, in which whatever sets it apart is at work within its context.
func Presets() []Shape {
	tiny := Shape{Name: "tiny", HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadSize: 16, FFNSize: 160, VocabSize: 512, ContextTokens: 512, RopeTheta: 10000}
	of := func(name, architecture string, change func(*Shape)) Shape {
		shape := tiny
		shape.Name, shape.Architecture = name, architecture
		change(&shape)
		return shape
	}
	return []Shape{
		tiny,
		of("tiny-llama3", "LlamaForCausalLM", func(s *Shape) {
			s.RopeTheta = 500000
			s.RopeScaling = RopeScaling{Kind: RopeLlama3, Factor: 8, OriginalContext: 128, LowFreqFactor: 1, HighFreqFactor: 4}
			s.Sampling = sampling(0.6, 0.9, 0, 0)
		}),
		of("tiny-mistral", "MistralForCausalLM", func(s *Shape) { s.Window = 48 }),
		of("tiny-qwen2", "Qwen2ForCausalLM", func(s *Shape) {
			s.Layers, s.RopeTheta, s.TiedEmbeddings, s.Window, s.WindowFrom = 3, 1e6, true, 40, 1
			s.Sampling = sampling(0.7, 0.8, 20, 1.05)
		}),
		of("tiny-qwen3", "Qwen3ForCausalLM", func(s *Shape) {
			s.HeadSize, s.RopeTheta, s.TiedEmbeddings = 32, 1e6, true
			s.Sampling = sampling(0.6, 0.95, 20, 0)
		}),
		of("tiny-qwen3-yarn", "Qwen3ForCausalLM", func(s *Shape) {
			s.HeadSize, s.RopeTheta = 32, 1e6
			s.RopeScaling = RopeScaling{Kind: RopeYaRN, Factor: 4, OriginalContext: 128}
		}),
		{Name: "bench-200m", HiddenSize: 1024, Layers: 16, Heads: 16, KVHeads: 4, HeadSize: 64, FFNSize: 2816, VocabSize: 32000, ContextTokens: 32768, RopeTheta: 500000, TiedEmbeddings: true},
		{Name: "bench-1b", HiddenSize: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadSize: 64, FFNSize: 8192, VocabSize: 128256, ContextTokens: 32768, RopeTheta: 500000, TiedEmbeddings: true},
		{Name: "bench-8b", HiddenSize: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, FFNSize: 14336, VocabSize: 128256, ContextTokens: 32768, RopeTheta: 500000},
	}
}

// sampling is what some publishers ask for; 0: nothing is said.
func sampling(temperature, topP float32, topK int, repetition float32) SamplingDefaults {
	d := SamplingDefaults{Temperature: &temperature, TopP: &topP}
	if topK > 0 {
		d.TopK = &topK
	}
	if repetition > 0 {
		d.RepetitionPenalty = &repetition
	}
	return d
}

// Preset finds a shape by its name.
func Preset(name string) (Shape, error) {
	known := make([]string, 0, len(Presets()))
	for _, shape := range Presets() {
		if shape.Name == name {
			return shape, nil
		}
		known = append(known, shape.Name)
	}
	return Shape{}, fmt.Errorf("no preset %s: choose one of %s", clip(name), strings.Join(known, ", "))
}

// bos and eos are the ids of the two special tokens: the last two.
func (s Shape) bos() int { return s.VocabSize - 2 }
func (s Shape) eos() int { return s.VocabSize - 1 }

// Spec is the specification of a model of this shape; it has no Digest.
func (s Shape) Spec() (Spec, error) {
	_, spec, err := s.read()
	spec.Name = s.Name
	return spec, err
}

// config is the config.json of the shape, and what this package reads it as.
func (s Shape) config() ([]byte, Spec, error) {
	data, spec, err := s.read()
	if err != nil {
		return nil, Spec{}, err
	}
	if lowest, highest := 256+2, 256+2+maxSynthMerges; s.VocabSize < lowest || s.VocabSize > highest {
		return nil, Spec{}, fmt.Errorf("shape %s: a vocabulary of %d tokens: the synthetic tokenizer needs between %d and %d", s.Name, s.VocabSize, lowest, highest)
	}
	return append(data, '\n'), spec, nil
}

// read is config without what only weights need.
func (s Shape) read() ([]byte, Spec, error) {
	data, err := s.configJSON()
	if err != nil {
		return nil, Spec{}, fmt.Errorf("write config.json: %w", err)
	}
	spec, err := parseConfig(configFile, data)
	if err != nil {
		return nil, Spec{}, fmt.Errorf("shape %s: %w", s.Name, err)
	}
	if spec.ContextTokens != s.ContextTokens {
		return nil, Spec{}, fmt.Errorf("shape %s: the context is %d tokens, but its RoPE scaling gives %d", s.Name, s.ContextTokens, spec.ContextTokens)
	}
	return data, spec, nil
}
