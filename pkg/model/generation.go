package model

import "fmt"

// Bounds on what a generation_config.json may ask for.
const (
	maxTemperature       = 100
	maxRepetitionPenalty = 100
	maxTopK              = 1 << 30
)

// addGenerationConfig adds what a generation_config.json says: its start token
// replaces, its ends add to those of config.json, and its sampling is the default
// of requests that say nothing. What else is in it (max_new_tokens, pad_token_id,
// beams and their like) concerns other software.
func addGenerationConfig(s *Spec, file string, data []byte) error {
	f, err := parseFields(file, data)
	if err != nil {
		return err
	}
	f.setTokens(s, f.tokens("bos_token_id", s.VocabSize), f.tokens("eos_token_id", s.VocabSize))
	f.readSampling(&s.Sampling)
	return *f.err
}

// readSampling reads how tokens are drawn. "do_sample": false means the likeliest
// token, whatever else is there; a file that does not say it leaves the choice to
// whoever asks, although Hugging Face's generate then takes the likeliest too: it
// is what publishers leave out who mean nothing by it.
func (f fields) readSampling(d *SamplingDefaults) {
	for _, x := range []struct {
		key             string
		to              **float32
		lowest, highest float64
		above           bool // lowest itself is out of range
	}{
		{"temperature", &d.Temperature, 0, maxTemperature, false},
		{"top_p", &d.TopP, 0, 1, true},
		{"min_p", &d.MinP, 0, 1, false},
		{"typical_p", &d.TypicalP, 0, 1, true},
		{"repetition_penalty", &d.RepetitionPenalty, 0, maxRepetitionPenalty, true},
	} {
		if !f.has(x.key) {
			continue
		}
		value := f.floatOr(x.key, 0)
		narrow := float32(value)
		if value < x.lowest || value > x.highest || x.above && narrow <= float32(x.lowest) {
			between := "between %g and %g"
			if x.above {
				between = "above %g and at most %g"
			}
			f.bad(x.key, f.shown(x.key)+" is not "+fmt.Sprintf(between, x.lowest, x.highest), "correct it")
		}
		*x.to = &narrow
	}
	if f.has("top_k") {
		k := max(f.integer("top_k", -1, maxTopK), 0) // some files say -1 where they mean all
		d.TopK = &k
	}
	if !f.boolOr("do_sample", true) {
		d.Temperature = new(float32)
	}
}
