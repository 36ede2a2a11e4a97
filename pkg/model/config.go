package model

import (
	"encoding/json"
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
	maxContext   = 1 << 26
	maxRopeTheta = 1e12
)

const architectureLlama = "LlamaForCausalLM"

// ParseConfig reads a config.json of the Llama architecture. Fields that it
// leaves out have the defaults of Hugging Face's LlamaConfig; what would need
// arithmetic that is not implemented is refused by name. Name and Digest stay
// empty; WeightType is what the file claims, empty if it claims nothing. Errors
// are of type *Error.
func ParseConfig(data []byte) (Spec, error) {
	return parseConfig("config.json", data)
}

func parseConfig(file string, data []byte) (Spec, error) {
	f, err := parseFields(file, data)
	if err != nil {
		return Spec{}, err
	}
	if err := f.checkArchitecture(); err != nil {
		return Spec{}, err
	}
	spec := Spec{Architecture: architectureLlama, BOS: -1}
	for _, read := range []func(*Spec) error{f.readSizes, f.checkUnsupported, f.readNumerics, f.readRope, f.readTokens, f.readWeightType} {
		if err := read(&spec); err != nil {
			return Spec{}, err
		}
	}
	return spec, nil
}

func (f fields) checkArchitecture() error {
	const remedy = "use a model of the Llama architecture (" + architectureLlama + ")"
	if !f.has("architectures") {
		return f.bad("architectures", "is missing", remedy)
	}
	var names []string
	if err := json.Unmarshal(f.values["architectures"], &names); err != nil {
		return f.bad("architectures", f.shown("architectures")+" is not a list of names", remedy)
	}
	if len(names) != 1 || names[0] != architectureLlama {
		return f.bad("architectures", f.shown("architectures")+" is not supported", remedy)
	}
	kind, err := f.textOr("model_type", "llama")
	if err != nil {
		return err
	}
	if kind != "llama" {
		return f.bad("model_type", clip(kind)+" is not supported", remedy)
	}
	return nil
}

func (f fields) readSizes(s *Spec) error {
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
		n, err := f.integer(size.key, 1, size.highest)
		if err != nil {
			return err
		}
		*size.to = n
	}
	var err error
	if s.KVHeads, err = f.integerOr("num_key_value_heads", s.Heads, 1, maxHeads); err != nil {
		return err
	}
	if s.Heads%s.KVHeads != 0 {
		return f.bad("num_key_value_heads", fmt.Sprintf("num_attention_heads %d is not a multiple of %d", s.Heads, s.KVHeads), "correct it")
	}
	if !f.has("head_dim") && s.HiddenSize%s.Heads != 0 {
		return f.bad("head_dim", fmt.Sprintf("is missing, and hidden_size %d is not a multiple of num_attention_heads %d", s.HiddenSize, s.Heads), "add it")
	}
	if s.HeadSize, err = f.integerOr("head_dim", s.HiddenSize/s.Heads, 1, maxHeadSize); err != nil {
		return err
	}
	if s.HeadSize < 2 || s.HeadSize%2 != 0 || s.HeadSize > maxHeadSize {
		return f.bad("head_dim", fmt.Sprintf("heads of %d elements: the rotary embedding needs an even number up to %d", s.HeadSize, maxHeadSize), "correct it")
	}
	s.ContextTokens, err = f.integerOr("max_position_embeddings", 2048, 1, maxContext)
	return err
}

// checkUnsupported refuses what would change the arithmetic.
func (f fields) checkUnsupported(*Spec) error {
	const remedy = "use a checkpoint without it"
	for _, key := range []string{"attention_bias", "mlp_bias"} {
		on, err := f.boolOr(key, false)
		if err != nil {
			return err
		}
		if on {
			return f.bad(key, "true is not supported", remedy)
		}
	}
	act, err := f.textOr("hidden_act", "silu")
	if err != nil {
		return err
	}
	if act != "silu" && act != "swish" { // two names of the same function
		return f.bad("hidden_act", clip(act)+" is not supported", `use a model with "silu"`)
	}
	if f.has("quantization_config") {
		return f.bad("quantization_config", f.shown("quantization_config")+" is not supported", "use the bf16, f16 or f32 checkpoint")
	}
	part, err := f.floatOr("partial_rotary_factor", 1)
	if err != nil {
		return err
	}
	if part != 1 {
		return f.bad("partial_rotary_factor", f.shown("partial_rotary_factor")+" is not supported", remedy)
	}
	return nil
}

func (f fields) readNumerics(s *Spec) error {
	eps, err := f.floatOr("rms_norm_eps", 1e-6)
	if err != nil {
		return err
	}
	if s.RMSNormEps = float32(eps); s.RMSNormEps <= 0 || eps >= 1 {
		return f.bad("rms_norm_eps", f.shown("rms_norm_eps")+" is not between 0 and 1, both excluded", "correct it")
	}
	s.TiedEmbeddings, err = f.boolOr("tie_word_embeddings", false)
	return err
}

// readRope reads rope_theta and rope_scaling, or rope_parameters, which newer
// files have instead of both.
func (f fields) readRope(s *Spec) error {
	theta, err := f.floatOr("rope_theta", 10000)
	if err != nil {
		return err
	}
	at := f
	key := "rope_theta"
	for _, group := range []string{"rope_scaling", "rope_parameters"} {
		if !f.has(group) {
			continue
		}
		inner, err := parseFields(f.file, f.values[group])
		if err != nil {
			return f.bad(group, f.shown(group)+" is not an object", "correct it")
		}
		kind, err := inner.ropeType(group)
		if err != nil {
			return err
		}
		if kind != "default" {
			return f.bad(group, "type "+clip(kind)+" is not supported", "use a model whose "+group+` is null or of type "default"`)
		}
		if inner.has("rope_theta") {
			if theta, err = inner.floatOr("rope_theta", theta); err != nil {
				return err
			}
			at, key = inner, "rope_theta"
		}
		if part, err := inner.floatOr("partial_rotary_factor", 1); err != nil || part != 1 {
			return f.bad(group+".partial_rotary_factor", "only 1 is supported", "use a checkpoint without it")
		}
	}
	if theta <= 0 || theta > maxRopeTheta {
		return at.bad(key, at.shown(key)+fmt.Sprintf(" is not above 0 and at most %g", float64(maxRopeTheta)), "correct it")
	}
	s.RopeTheta = theta
	return nil
}

// ropeType reads the kind of scaling: "rope_type", or "type" in older files.
func (f fields) ropeType(group string) (string, error) {
	for _, key := range []string{"rope_type", "type"} {
		if f.has(key) {
			return f.textOr(key, "")
		}
	}
	if group == "rope_parameters" {
		return "default", nil
	}
	return "", f.bad(group, "has no rope_type", "use a model whose rope_scaling is null")
}

func (f fields) readTokens(s *Spec) error {
	// LlamaConfig's defaults for absent keys; null means that there is none.
	bos, eos := []int32{1}, []int32{2}
	var err error
	if _, ok := f.values["bos_token_id"]; ok || s.VocabSize <= 1 {
		if bos, err = f.tokens("bos_token_id", s.VocabSize); err != nil {
			return err
		}
	}
	if _, ok := f.values["eos_token_id"]; ok || s.VocabSize <= 2 {
		if eos, err = f.tokens("eos_token_id", s.VocabSize); err != nil {
			return err
		}
	}
	return f.setTokens(s, bos, eos)
}

// setTokens takes over a start token, if one is given, and adds ends.
func (f fields) setTokens(s *Spec, bos, eos []int32) error {
	if len(bos) > 1 {
		return f.bad("bos_token_id", f.shown("bos_token_id")+" is more than one token", "correct it")
	}
	if len(bos) == 1 {
		s.BOS = bos[0]
	}
	for _, id := range eos {
		if !slices.Contains(s.EOS, id) {
			s.EOS = append(s.EOS, id)
		}
	}
	return nil
}

func (f fields) readWeightType(s *Spec) error {
	for _, key := range []string{"torch_dtype", "dtype"} {
		name, err := f.textOr(key, "")
		if err != nil {
			return err
		}
		switch name {
		case "bfloat16":
			s.WeightType = BF16.String()
		case "float16":
			s.WeightType = F16.String()
		case "float32":
			s.WeightType = F32.String()
		}
	}
	return nil
}

// addGenerationConfig adds what a generation_config.json says: its start token
// replaces, its ends add to those of config.json.
func addGenerationConfig(s *Spec, file string, data []byte) error {
	f, err := parseFields(file, data)
	if err != nil {
		return err
	}
	bos, err := f.tokens("bos_token_id", s.VocabSize)
	if err != nil {
		return err
	}
	eos, err := f.tokens("eos_token_id", s.VocabSize)
	if err != nil {
		return err
	}
	return f.setTokens(s, bos, eos)
}
