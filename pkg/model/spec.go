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
	// TiedEmbeddings: the output matrix is the embedding.
	TiedEmbeddings bool
	// WeightType is how weights are stored: "bf16", "f16" or "f32".
	WeightType string
	// BOS is the start token, -1 if the model has none.
	BOS int32
	// EOS are the tokens that end a text.
	EOS []int32
}

// Parameters is the number of weights.
func (s Spec) Parameters() int64 {
	h, l := int64(s.HiddenSize), int64(s.Layers)
	q, kv := int64(s.Heads*s.HeadSize), int64(s.KVHeads*s.HeadSize)
	layer := 2*h + h*q + 2*h*kv + q*h + 3*h*int64(s.FFNSize)
	total := int64(s.VocabSize)*h + l*layer + h
	if !s.TiedEmbeddings {
		total += int64(s.VocabSize) * h
	}
	return total
}
