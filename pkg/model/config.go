package model

import (
	"fmt"
	"slices"
)

// Bounds on what a config.json may ask for. They are far above every model that
// exists, and small enough that no product of them overflows.
const (
	maxVocabSize = 1 << 22
	maxHidden    = 1 << 17
	maxLayers    = 1 << 12
	maxHeads     = 1 << 12
	maxHeadSize  = 1 << 10
	maxFFN       = 1 << 20
	leastContext = 2 // a prompt and an answer of one token each
	maxContext   = 1 << 26
	maxRopeTheta = 1e12
)

// parseConfig reads a config.json of one of the architectures. Fields that it
// leaves out have the defaults of Hugging Face's class; what would need
// arithmetic that is not implemented is refused by name. Name and Digest stay
// empty; WeightType is what the file claims, empty if it claims nothing. Errors
// are of type *Error.
func parseConfig(file string, data []byte) (Spec, error) {
	f, err := parseFields(file, data)
	if err != nil {
		return Spec{}, err
	}
	of, err := f.family()
	if err != nil {
		return Spec{}, err
	}
	spec := Spec{Architecture: of.architecture, QKVBias: of.qkvBias, QKNorm: of.qkNorm, BOS: -1}
	f.readSizes(&spec, of)
	f.checkUnsupported(of)
	f.readNumerics(&spec)
	f.readRope(&spec)
	f.readChunks(&spec)
	of.windows(f, &spec)
	f.readTokens(&spec, of)
	f.readWeightType(&spec)
	if *f.err != nil {
		return Spec{}, *f.err
	}
	return spec, nil
}

func (f fields) readSizes(s *Spec, of family) {
	for _, size := range []struct {
		key     string
		to      *int
		highest int
	}{
		{"vocab_size", &s.VocabSize, maxVocabSize},
		{"hidden_size", &s.HiddenSize, maxHidden},
		{"intermediate_size", &s.FFNSize, maxFFN},
		{"num_hidden_layers", &s.Layers, maxLayers},
		{"num_attention_heads", &s.Heads, maxHeads},
	} {
		*size.to = f.integer(size.key, 1, size.highest)
	}
	f.readHeads(s, of)
	s.ContextTokens = f.integerOr("max_position_embeddings", of.context, leastContext, maxContext)
}

// readHeads reads how many key/value heads there are and how large heads are.
// Where a class has a number for an absent key, null still means that it follows
// from the other sizes.
func (f fields) readHeads(s *Spec, of family) {
	kvHeads, headSize := s.Heads, s.HiddenSize/s.Heads
	if _, there := f.values["num_key_value_heads"]; !there && of.kvHeads > 0 {
		kvHeads = of.kvHeads
	}
	_, there := f.values["head_dim"]
	classSize := !there && of.headSize > 0
	if classSize {
		headSize = of.headSize
	}
	s.KVHeads = f.integerOr("num_key_value_heads", kvHeads, 1, maxHeads)
	if s.Heads%s.KVHeads != 0 {
		f.bad("num_key_value_heads", fmt.Sprintf("num_attention_heads %d is not a multiple of %d", s.Heads, s.KVHeads), "correct it")
	}
	if !f.has("head_dim") && !classSize && s.HiddenSize%s.Heads != 0 {
		f.bad("head_dim", fmt.Sprintf("is missing, and hidden_size %d is not a multiple of num_attention_heads %d", s.HiddenSize, s.Heads), "add it")
	}
	s.HeadSize = f.integerOr("head_dim", headSize, 1, maxHeadSize)
	if s.HeadSize < 2 || s.HeadSize%2 != 0 || s.HeadSize > maxHeadSize {
		f.bad("head_dim", fmt.Sprintf("heads of %d elements: the rotary embedding needs an even number up to %d", s.HeadSize, maxHeadSize), "correct it")
	}
}

// checkUnsupported refuses what would change the arithmetic.
func (f fields) checkUnsupported(of family) {
	const remedy = "use a checkpoint without it"
	for _, bias := range []struct{ key, of string }{
		{"attention_bias", "the attention's output projection"}, {"mlp_bias", "the feed-forward part"},
	} {
		if of.qkvBias && bias.key == "attention_bias" {
			continue // no key of the class: which biases it has is fixed
		}
		if f.boolOr(bias.key, false) {
			f.bad(bias.key, "true is not supported: "+bias.of+" would have a bias", remedy)
		}
	}
	act := f.textOr("hidden_act", "silu")
	if act != "silu" && act != "swish" { // two names of the same function
		f.bad("hidden_act", clip(act)+" is not supported", `use a model with "silu"`)
	}
	for _, key := range []string{"quantization_config", "compression_config"} {
		if f.has(key) {
			f.bad(key, "quantized weights are not supported: "+f.quantization(key), "use the bf16, f16 or f32 checkpoint")
		}
	}
	if f.floatOr("partial_rotary_factor", 1) != 1 {
		f.bad("partial_rotary_factor", f.shown("partial_rotary_factor")+" is not supported", remedy)
	}
}

// quantization names how the weights are quantized.
func (f fields) quantization(key string) string {
	group, err := parseFields(f.file, f.values[key])
	if err != nil || !group.has("quant_method") {
		return f.shown(key)
	}
	return group.shown("quant_method")
}

// readChunks bounds the context of a model whose longer one needs attention in two
// kinds of chunks (Qwen2.5-1M): within one chunk it is the ordinary one.
func (f fields) readChunks(s *Spec) {
	const key = "dual_chunk_attention_config"
	if !f.has(key) {
		return
	}
	group := f.object(key)
	size := group.integer("chunk_size", 1, maxContext)
	local := group.integerOr("local_size", 0, 0, size-1)
	original := group.integerOr("original_max_position_embeddings", size, 1, maxContext)
	s.ContextTokens = min(s.ContextTokens, size-local, original)
}

func (f fields) readNumerics(s *Spec) {
	eps := f.floatOr("rms_norm_eps", 1e-6)
	if s.RMSNormEps = float32(eps); s.RMSNormEps <= 0 || eps >= 1 {
		f.bad("rms_norm_eps", f.shown("rms_norm_eps")+" is not between 0 and 1, both excluded", "correct it")
	}
	s.TiedEmbeddings = f.boolOr("tie_word_embeddings", false)
}

func (f fields) readTokens(s *Spec, of family) {
	// The class's defaults for absent keys; null means that there is none.
	bos, eos := of.token(of.bos, s), of.token(of.eos, s)
	if _, ok := f.values["bos_token_id"]; ok {
		bos = f.tokens("bos_token_id", s.VocabSize)
	}
	if _, ok := f.values["eos_token_id"]; ok {
		eos = f.tokens("eos_token_id", s.VocabSize)
	}
	f.setTokens(s, bos, eos)
}

// token is a default as a list: empty if there is none in the vocabulary.
func (family) token(id int32, s *Spec) []int32 {
	if id < 0 || int(id) >= s.VocabSize {
		return nil
	}
	return []int32{id}
}

// setTokens takes over a start token, if one is given, and adds ends.
func (f fields) setTokens(s *Spec, bos, eos []int32) {
	if len(bos) > 1 {
		f.bad("bos_token_id", f.shown("bos_token_id")+" is more than one token", "correct it")
	}
	if len(bos) == 1 {
		s.BOS = bos[0]
	}
	for _, id := range eos {
		if !slices.Contains(s.EOS, id) {
			s.EOS = append(s.EOS, id)
		}
	}
}

func (f fields) readWeightType(s *Spec) {
	for _, key := range []string{"torch_dtype", "dtype"} {
		switch f.textOr(key, "") {
		case "bfloat16":
			s.WeightType = BF16.String()
		case "float16":
			s.WeightType = F16.String()
		case "float32":
			s.WeightType = F32.String()
		}
	}
}
