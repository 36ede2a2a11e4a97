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
func (f fields) ropeGroup() (group fields, name string) {
	for _, name := range []string{"rope_scaling", "rope_parameters"} {
		if !f.has(name) {
			continue
		}
		if group := f.object(name); len(group.values) > 0 {
			return group, name
		}
	}
	return fields{}, ""
}

// readRope reads the base and the scaling of the rotary embedding, and what the
// scaling makes of the context.
func (f fields) readRope(s *Spec) {
	theta := f.floatOr("rope_theta", 10000)
	group, name := f.ropeGroup()
	at := f
	if group.has("rope_theta") {
		theta = group.floatOr("rope_theta", theta)
		at = group
	}
	// At 1 and under it no pair of dimensions turns slower than the one before, and
	// YaRN divides by the base's logarithm.
	if !(theta > 1 && theta <= maxRopeTheta) {
		at.bad("rope_theta", at.shown("rope_theta")+fmt.Sprintf(" is not above 1 and at most %g", float64(maxRopeTheta)), "correct it")
	}
	s.RopeTheta = theta
	if name == "" {
		return
	}
	kind := group.ropeType(name)
	for _, key := range []string{"mrope_section", "short_factor", "long_factor", "llama_4_scaling_beta", "attn_factor", "extrapolation_factor"} {
		if group.has(key) {
			group.bad(key, "is not supported", "use a checkpoint without it")
		}
	}
	if group.floatOr("partial_rotary_factor", 1) != 1 {
		group.bad("partial_rotary_factor", "only 1 is supported", "use a checkpoint without it")
	}
	if kind != "default" {
		f.readScaling(s, group, kind)
	}
}

// ropeType reads the kind of scaling: "rope_type", or "type" in older files.
func (f fields) ropeType(name string) string {
	kind, from := "", ""
	for _, key := range []string{"rope_type", "type"} {
		if !f.has(key) {
			continue
		}
		text := f.textOr(key, "")
		switch text {
		case "default", RopeLinear, RopeLlama3, RopeYaRN:
		default:
			f.bad(key, clip(text)+" is not supported", `use a model whose `+name+` is null, or of type "default", "linear", "llama3" or "yarn"`)
		}
		if from != "" && text != kind {
			f.bad(key, clip(text)+" contradicts "+from+" "+clip(kind), "keep one of the two")
		}
		kind, from = text, key
	}
	switch {
	case from != "":
		return kind
	case f.has("full_attention") || f.has("sliding_attention"):
		f.fail(name, "has separate parameters for each kind of layer, which is not supported", "use a model with one rotary embedding")
	case name != "rope_parameters":
		f.fail(name, "has no rope_type", "use a model whose rope_scaling is null, or add it")
	}
	return "default"
}

// readScaling completes s.RopeScaling with the defaults of Hugging Face's
// modeling_rope_utils.
func (f fields) readScaling(s *Spec, group fields, kind string) {
	r := RopeScaling{Kind: kind, AttentionFactor: 1}
	if kind != RopeLinear {
		r.OriginalContext = f.originalContext(s, group)
	}
	r.Factor = group.ropeFactor(s, r)
	switch kind {
	case RopeLlama3:
		group.readLlama3(&r)
	case RopeYaRN:
		group.readYaRN(&r)
	}
	s.RopeScaling = r
	f.scaleContext(s)
}

// originalContext is the context before scaling. Some files have it beside the
// group, which then counts.
func (f fields) originalContext(s *Spec, group fields) int {
	const key = "original_max_position_embeddings"
	if f.has(key) {
		return f.integer(key, 1, maxContext)
	}
	return group.integerOr(key, s.ContextTokens, 1, maxContext)
}

func (f fields) ropeFactor(s *Spec, r RopeScaling) float64 {
	const key = "factor"
	if _, there := f.values[key]; there && !f.has(key) && r.Kind == RopeYaRN {
		return max(1, float64(s.ContextTokens)/float64(r.OriginalContext)) // null: follows from the two contexts
	}
	if !f.has(key) {
		f.missing(key)
	}
	factor := f.floatOr(key, 1)
	if factor < 1 || factor > maxRopeFactor {
		f.bad(key, fmt.Sprintf("%s is not between 1 and %d", f.shown(key), maxRopeFactor), "correct it")
	}
	return factor
}

func (f fields) readLlama3(r *RopeScaling) {
	for _, x := range []struct {
		key string
		to  *float64
	}{{"low_freq_factor", &r.LowFreqFactor}, {"high_freq_factor", &r.HighFreqFactor}} {
		if !f.has(x.key) {
			f.missing(x.key)
		}
		*x.to = f.floatOr(x.key, 0)
		if *x.to <= 0 || *x.to > maxRopeFactor {
			f.bad(x.key, fmt.Sprintf("%s is not above 0 and at most %d", f.shown(x.key), maxRopeFactor), "correct it")
		}
	}
	if r.HighFreqFactor <= r.LowFreqFactor {
		f.bad("high_freq_factor", fmt.Sprintf("%g is not above low_freq_factor %g", r.HighFreqFactor, r.LowFreqFactor), "correct it")
	}
}

func (f fields) readYaRN(r *RopeScaling) {
	r.Truncate = f.boolOr("truncate", true)
	for _, x := range []struct {
		key       string
		to        *float64
		otherwise float64
	}{{"beta_fast", &r.BetaFast, 32}, {"beta_slow", &r.BetaSlow, 1}} {
		*x.to = f.floatOr(x.key, x.otherwise)
		if *x.to == 0 {
			*x.to = x.otherwise
		}
		if *x.to < 0 || *x.to > maxRopeBeta {
			f.bad(x.key, fmt.Sprintf("%s is not between 0 and %d", f.shown(x.key), maxRopeBeta), "correct it")
		}
	}
	if r.BetaFast < r.BetaSlow {
		f.bad("beta_fast", fmt.Sprintf("%g is below beta_slow %g", r.BetaFast, r.BetaSlow), "correct it")
	}
	r.AttentionFactor = f.yarnAttention(r.Factor)
}

// yarnAttention is attention_factor, or what YaRN's paper (arXiv 2309.00071,
// section 3.4) and its variant of two scales take instead.
func (f fields) yarnAttention(factor float64) float64 {
	const key = "attention_factor"
	mscale, all := f.floatOr("mscale", 0), f.floatOr("mscale_all_dim", 0)
	of := func(scale float64) float64 { return float64(0.1*scale*math.Log(factor)) + 1 } // 1 at factor 1; not fused
	x := of(1)
	switch {
	case f.has(key):
		x = f.floatOr(key, 0)
	case mscale != 0 && all != 0:
		x = of(mscale) / of(all)
	}
	const most = 1000
	if !(x > 0 && x <= most) {
		f.bad(key, fmt.Sprintf("%g is not above 0 and at most %d", x, most), "correct it, or mscale and mscale_all_dim")
	}
	return x
}

// scaleContext says what the model's context is. Files disagree about whether
// max_position_embeddings counts before or after scaling. As vLLM does: yarn's is
// the original one times the factor, linear's is what the file says times the
// factor; files of llama3 say it as it is.
func (f fields) scaleContext(s *Spec) {
	tokens := float64(s.ContextTokens)
	switch s.RopeScaling.Kind {
	case RopeYaRN:
		tokens = float64(s.RopeScaling.OriginalContext) * s.RopeScaling.Factor
	case RopeLinear:
		tokens *= s.RopeScaling.Factor
	}
	if tokens > maxContext {
		f.bad("max_position_embeddings", fmt.Sprintf("the scaled context of %.0f tokens is more than %d", tokens, maxContext), "correct this value or the scaling")
	}
	s.ContextTokens = int(tokens)
}
