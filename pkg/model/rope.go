package model

import (
	"fmt"
	"math"
)

// Bounds on the parameters of RoPE scaling, far from what any model has.
const (
	maxRopeFactor = 1 << 20
	maxRopeBeta   = 1 << 20
)

// ropeGroup is the object that describes the rotary embedding: rope_scaling, or
// rope_parameters in newer files, where the base is in it too. A file with both is
// read as Hugging Face reads it: by rope_scaling. Empty name: there is none.
func (f fields) ropeGroup() (group fields, name string, err error) {
	for _, name := range []string{"rope_scaling", "rope_parameters"} {
		if !f.has(name) {
			continue
		}
		group, err := parseFields(f.file, f.values[name])
		if err != nil {
			return fields{}, "", f.bad(name, f.shown(name)+" is not an object", "correct it")
		}
		if len(group.values) > 0 {
			group.prefix = name + "."
			return group, name, nil
		}
	}
	return fields{}, "", nil
}

// readRope reads the base and the scaling of the rotary embedding, and what the
// scaling makes of the context.
func (f fields) readRope(s *Spec) error {
	theta, err := f.floatOr("rope_theta", 10000)
	if err != nil {
		return err
	}
	group, name, err := f.ropeGroup()
	if err != nil {
		return err
	}
	at := f
	if group.has("rope_theta") {
		if theta, err = group.floatOr("rope_theta", theta); err != nil {
			return err
		}
		at = group
	}
	// At 1 and under it no pair of dimensions turns slower than the one before, and
	// YaRN divides by the base's logarithm.
	if !(theta > 1 && theta <= maxRopeTheta) {
		return at.bad("rope_theta", at.shown("rope_theta")+fmt.Sprintf(" is not above 1 and at most %g", float64(maxRopeTheta)), "correct it")
	}
	s.RopeTheta = theta
	if name == "" {
		return nil
	}
	kind, err := group.ropeType(name)
	if err != nil {
		return err
	}
	for _, key := range []string{"mrope_section", "short_factor", "long_factor", "llama_4_scaling_beta", "attn_factor", "extrapolation_factor"} {
		if group.has(key) {
			return group.bad(key, "is not supported", "use a checkpoint without it")
		}
	}
	part, err := group.floatOr("partial_rotary_factor", 1)
	if err != nil {
		return err
	}
	if part != 1 {
		return group.bad("partial_rotary_factor", "only 1 is supported", "use a checkpoint without it")
	}
	if kind == "default" {
		return nil
	}
	return f.readScaling(s, group, kind)
}

// ropeType reads the kind of scaling: "rope_type", or "type" in older files.
func (f fields) ropeType(name string) (string, error) {
	kind, from := "", ""
	for _, key := range []string{"rope_type", "type"} {
		if !f.has(key) {
			continue
		}
		text, err := f.textOr(key, "")
		if err != nil {
			return "", err
		}
		switch text {
		case "default", RopeLinear, RopeLlama3, RopeYaRN:
		default:
			return "", f.bad(key, clip(text)+" is not supported", `use a model whose `+name+` is null, or of type "default", "linear", "llama3" or "yarn"`)
		}
		if from != "" && text != kind {
			return "", f.bad(key, clip(text)+" contradicts "+from+" "+clip(kind), "leave one of the two")
		}
		kind, from = text, key
	}
	switch {
	case from != "":
		return kind, nil
	case f.has("full_attention") || f.has("sliding_attention"):
		return "", &Error{File: f.file, Field: name, Problem: "has parameters of its own for each kind of layer, which is not supported", Remedy: "use a model with one rotary embedding"}
	case name == "rope_parameters":
		return "default", nil
	}
	return "", &Error{File: f.file, Field: name, Problem: "has no rope_type", Remedy: "use a model whose rope_scaling is null, or add it"}
}

// readScaling completes s.RopeScaling with the defaults of Hugging Face's
// modeling_rope_utils.
func (f fields) readScaling(s *Spec, group fields, kind string) (err error) {
	r := RopeScaling{Kind: kind, AttentionFactor: 1}
	if kind != RopeLinear {
		if r.OriginalContext, err = f.originalContext(s, group); err != nil {
			return err
		}
	}
	if r.Factor, err = group.ropeFactor(s, r); err != nil {
		return err
	}
	switch kind {
	case RopeLlama3:
		err = group.readLlama3(&r)
	case RopeYaRN:
		err = group.readYaRN(&r)
	}
	if err != nil {
		return err
	}
	s.RopeScaling = r
	return f.scaleContext(s)
}

// originalContext is the context before scaling. Some files have it beside the
// group, which then counts.
func (f fields) originalContext(s *Spec, group fields) (int, error) {
	const key = "original_max_position_embeddings"
	if f.has(key) {
		return f.integer(key, 1, maxContext)
	}
	return group.integerOr(key, s.ContextTokens, 1, maxContext)
}

func (f fields) ropeFactor(s *Spec, r RopeScaling) (float64, error) {
	const key = "factor"
	if _, there := f.values[key]; there && !f.has(key) && r.Kind == RopeYaRN {
		return max(1, float64(s.ContextTokens)/float64(r.OriginalContext)), nil // null: follows from the two contexts
	}
	if !f.has(key) {
		return 0, f.missing(key)
	}
	factor, err := f.floatOr(key, 1)
	if err != nil {
		return 0, err
	}
	if factor < 1 || factor > maxRopeFactor {
		return 0, f.bad(key, fmt.Sprintf("%s is not between 1 and %d", f.shown(key), maxRopeFactor), "correct it")
	}
	return factor, nil
}

func (f fields) readLlama3(r *RopeScaling) (err error) {
	for _, x := range []struct {
		key string
		to  *float64
	}{{"low_freq_factor", &r.LowFreqFactor}, {"high_freq_factor", &r.HighFreqFactor}} {
		if !f.has(x.key) {
			return f.missing(x.key)
		}
		if *x.to, err = f.floatOr(x.key, 0); err != nil {
			return err
		}
		if *x.to <= 0 || *x.to > maxRopeFactor {
			return f.bad(x.key, fmt.Sprintf("%s is not above 0 and at most %d", f.shown(x.key), maxRopeFactor), "correct it")
		}
	}
	if r.HighFreqFactor <= r.LowFreqFactor {
		return f.bad("high_freq_factor", fmt.Sprintf("%g is not above low_freq_factor %g", r.HighFreqFactor, r.LowFreqFactor), "correct it")
	}
	return nil
}

func (f fields) readYaRN(r *RopeScaling) (err error) {
	if r.Truncate, err = f.boolOr("truncate", true); err != nil {
		return err
	}
	for _, x := range []struct {
		key       string
		to        *float64
		otherwise float64
	}{{"beta_fast", &r.BetaFast, 32}, {"beta_slow", &r.BetaSlow, 1}} {
		if *x.to, err = f.floatOr(x.key, x.otherwise); err != nil {
			return err
		}
		if *x.to == 0 {
			*x.to = x.otherwise
		}
		if *x.to < 0 || *x.to > maxRopeBeta {
			return f.bad(x.key, fmt.Sprintf("%s is not between 0 and %d", f.shown(x.key), maxRopeBeta), "correct it")
		}
	}
	if r.BetaFast < r.BetaSlow {
		return f.bad("beta_fast", fmt.Sprintf("%g is below beta_slow %g", r.BetaFast, r.BetaSlow), "correct it")
	}
	r.AttentionFactor, err = f.yarnAttention(r.Factor)
	return err
}

// yarnAttention is attention_factor, or what YaRN's paper (arXiv 2309.00071,
// section 3.4) and its variant of two scales take instead.
func (f fields) yarnAttention(factor float64) (float64, error) {
	const key = "attention_factor"
	var mscale, all float64
	var err error
	if mscale, err = f.floatOr("mscale", 0); err != nil {
		return 0, err
	}
	if all, err = f.floatOr("mscale_all_dim", 0); err != nil {
		return 0, err
	}
	of := func(scale float64) float64 { return float64(0.1*scale*math.Log(factor)) + 1 } // 1 at factor 1; not fused
	x := of(1)
	switch {
	case f.has(key):
		if x, err = f.floatOr(key, 0); err != nil {
			return 0, err
		}
	case mscale != 0 && all != 0:
		x = of(mscale) / of(all)
	}
	const most = 1000
	if !(x > 0 && x <= most) {
		return 0, f.bad(key, fmt.Sprintf("%g is not above 0 and at most %d", x, most), "correct it, or mscale and mscale_all_dim")
	}
	return x, nil
}

// scaleContext says what the model's context is. Files disagree about whether
// max_position_embeddings counts before or after scaling. As vLLM does: yarn's is
// the original one times the factor, linear's is what the file says times the
// factor; files of llama3 say it as it is.
func (f fields) scaleContext(s *Spec) error {
	tokens := float64(s.ContextTokens)
	switch s.RopeScaling.Kind {
	case RopeYaRN:
		tokens = float64(s.RopeScaling.OriginalContext) * s.RopeScaling.Factor
	case RopeLinear:
		tokens *= s.RopeScaling.Factor
	}
	if tokens > maxContext {
		return f.bad("max_position_embeddings", fmt.Sprintf("the scaled context of %.0f tokens is more than %d", tokens, maxContext), "correct it or the scaling")
	}
	s.ContextTokens = int(tokens)
	return nil
}
