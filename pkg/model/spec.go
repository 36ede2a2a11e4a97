package model

// Spec describes a model: what its config.json says, checked and completed.
type Spec struct {
	// Name is what requests call it: the directory's name unless told otherwise.
	Name string
	// Digest identifies configuration and weights: hexadecimal, 32 digits.
	Digest string
	// Architecture is the Hugging Face class name, such as "LlamaForCausalLM".
	Architecture string
	// VocabSize is the number of token ids, rows of the embedding.
	VocabSize int
	// HiddenSize is the width of the residual stream.
	HiddenSize int
	// Layers is the number of transformer layers.
	Layers int
	// Heads is the number of query heads, KVHeads of key/value heads; Heads is a
	// multiple of KVHeads.
	Heads, KVHeads int
	// HeadSize is the number of elements of one head; even.
	HeadSize int
	// FFNSize is the inner width of the feed-forward part.
	FFNSize int
	// ContextTokens is the most tokens of prompt and completion together.
	ContextTokens int
	// RMSNormEps is added to the mean square under the root.
	RMSNormEps float32
	// RopeTheta is the base of the rotary embedding.
	RopeTheta float64
	// RopeScaling stretches it over a longer context; the zero value does not.
	RopeScaling RopeScaling
	// QKVBias: the query, key and value projections add a bias (Qwen2).
	QKVBias bool
	// QKNorm: each query and key head goes through an RMSNorm of its own before
	// the rotary embedding (Qwen3).
	QKNorm bool
	// LayerWindows is the sliding window of each layer, in tokens: a query sees
	// itself and the LayerWindows[i]-1 tokens before it; 0 sees all. Nil: every
	// layer sees all.
	LayerWindows []int
	// TiedEmbeddings: the output matrix is the embedding.
	TiedEmbeddings bool
	// WeightType is how weights are stored: "bf16", "f16" or "f32".
	WeightType string
	// BOS is the start token, -1 if the model has none.
	BOS int32
	// EOS are the tokens that end a text.
	EOS []int32
	// Sampling is how generation_config.json wants tokens drawn.
	Sampling SamplingDefaults
}

// Window is the sliding window of a layer in tokens, 0 if it sees all.
func (s Spec) Window(layer int) int {
	if s.LayerWindows == nil {
		return 0
	}
	return s.LayerWindows[layer]
}

// capped is s with a context of at most so many tokens; 0 leaves it. Windows that
// hold all of it are none.
func (s Spec) capped(tokens int) Spec {
	if tokens <= 0 || tokens >= s.ContextTokens {
		return s
	}
	s.ContextTokens = tokens
	for _, window := range s.LayerWindows {
		if window > 0 && window < tokens {
			return s // all windows of a model are the same
		}
	}
	s.LayerWindows = nil
	return s
}

// Kinds of RopeScaling.
const (
	RopeLinear = "linear"
	RopeLlama3 = "llama3"
	RopeYaRN   = "yarn"
)

// RopeScaling is how the frequencies of the rotary embedding are changed for
// contexts longer than those of the first training. Fields that Kind has no use
// for are 0; all defaults are filled in.
type RopeScaling struct {
	// Kind is empty for none, or RopeLinear, RopeLlama3 or RopeYaRN.
	Kind string
	// Factor is how many times longer the context became.
	Factor float64
	// OriginalContext is the context of the first training, in tokens (llama3,
	// yarn).
	OriginalContext int
	// LowFreqFactor and HighFreqFactor bound the wavelengths between which llama3
	// passes from scaled to unscaled.
	LowFreqFactor, HighFreqFactor float64
	// BetaFast and BetaSlow are the rotations between which yarn does.
	BetaFast, BetaSlow float64
	// Truncate: yarn rounds the dimensions at which it does to whole ones.
	Truncate bool
	// AttentionFactor multiplies cosines and sines (yarn); 1 otherwise.
	AttentionFactor float64
}

// SamplingDefaults is how a model's publisher wants tokens drawn; nil where
// nothing is said.
type SamplingDefaults struct {
	// Temperature, TopP, MinP, TypicalP and RepetitionPenalty are as in sampler.Params.
	Temperature, TopP, MinP, TypicalP, RepetitionPenalty *float32
	// TopK is as in sampler.Params.
	TopK *int
}

// Parameters is the number of weights.
func (s Spec) Parameters() int64 {
	h, l := int64(s.HiddenSize), int64(s.Layers)
	q, kv := int64(s.Heads*s.HeadSize), int64(s.KVHeads*s.HeadSize)
	layer := 2*h + h*q + 2*h*kv + q*h + 3*h*int64(s.FFNSize)
	if s.QKVBias {
		layer += q + 2*kv
	}
	if s.QKNorm {
		layer += 2 * int64(s.HeadSize)
	}
	total := int64(s.VocabSize)*h + l*layer + h
	if !s.TiedEmbeddings {
		total += int64(s.VocabSize) * h
	}
	return total
}
