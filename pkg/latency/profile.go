package latency

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"
)

// ProfileVersion is the version of the files that this package writes and reads.
const ProfileVersion = 1

// Profile says how long one device takes for a step of one model, by what the
// step computes. It is what `tandem profile` measures and what the simulated
// engine obeys; it is kept as a JSON file. The keys of the file are those of the
// struct tags; times are milliseconds.
//
// It does not change once it is made, so it is safe for concurrent use.
type Profile struct {
	// Version is ProfileVersion.
	Version int `json:"version"`
	// Model is the model's name, Engine and Device say what ran it, Source who
	// measured; for people.
	Model  string `json:"model,omitempty"`
	Engine string `json:"engine,omitempty"`
	Device string `json:"device,omitempty"`
	Source string `json:"source,omitempty"`
	// Threads is the number of compute threads; 0: not said.
	Threads int `json:"threads,omitempty"`

	// Prefill is the time of the prompt chunks of a step, in regimes by their
	// tokens; Decode that of its single tokens, in regimes by their number. At
	// least one regime each, UpTo rising.
	Prefill []Regime `json:"prefill"`
	Decode  []Regime `json:"decode"`
	// Mixed is what the single tokens of a step add to the time of its prompts, in regimes
	// by their number. None: Predict derives it from Prefill and Decode.
	Mixed []Regime `json:"mixed,omitempty"`
	// Verify is the time of a step's single tokens if some have drafts, in regimes by the
	// number of tokens, drafts included. None: it is not known what drafts cost. Predict takes
	// the time of as many single tokens then, and who simulates does without drafts.
	Verify []Regime `json:"verify,omitempty"`

	// Jitter is the spread of real steps of one kind: the standard deviation of
	// their time over its mean.
	Jitter float64 `json:"jitter,omitempty"`
	// Errors are those of the fit, by kind of step: prefill, decode, mixed, verify.
	Errors map[string]FitError `json:"errors,omitempty"`
	// Limits are what the device could reach, measured in the same run.
	Limits *Limits `json:"limits,omitempty"`
	// Layers says where the time of a step goes, by kind of step.
	Layers map[string]LayerTimes `json:"layers,omitempty"`
}

// Terms are the time of a part of a step:
//
//	base + per token·T + per square·Σ(end²−start²) + per context token·Σend + per sample·S
//
// T are the tokens computed, [start, end) the positions of each sequence's, S
// how many sequences a token is drawn for. Twice the keys that a causal chunk
// looks at are end²−start², so that one whole prompt has DistServe's a + b·T +
// c·ΣL² (Zhong et al., OSDI '24, appendix A), and its step of single tokens
// a + b·Σcontext + c·batch. None is negative.
type Terms struct {
	BaseMs            float64 `json:"base_ms"`
	PerTokenMs        float64 `json:"per_token_ms"`
	PerSquareMs       float64 `json:"per_square_ms,omitempty"`
	PerContextTokenMs float64 `json:"per_context_token_ms,omitempty"`
	PerSampleMs       float64 `json:"per_sample_ms,omitempty"`
}

// Regime is the terms that hold for parts of at most UpTo tokens; 0: for all.
type Regime struct {
	UpTo int `json:"up_to,omitempty"`
	Terms
}

// FitError is how far a fit is from what was measured, relative to that.
type FitError struct {
	// Points is the number of kinds of step that were measured.
	Points int `json:"points"`
	// Median, P90 and Max are of the absolute relative errors.
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Max    float64 `json:"max"`
}

// Limits are what a device can reach at most; a 0 is not known.
type Limits struct {
	FLOPsPerSecond     float64 `json:"flops_per_second"`
	ReadBytesPerSecond float64 `json:"read_bytes_per_second"`
	// Valid is false if the machine was disturbed while they were measured.
	Valid bool `json:"valid"`
}

// LayerTimes is where the time of a step goes, in milliseconds.
type LayerTimes struct {
	// Tokens and Context are those of the step.
	Tokens  int `json:"tokens"`
	Context int `json:"context"`
	// LayersMs has for each layer the time from when the KV of the layer before was
	// there, or the step began, to when its own was. HeadMs is what came after the
	// last: what is left of that layer, logits and sampling.
	LayersMs []float64 `json:"layers_ms"`
	HeadMs   float64   `json:"head_ms"`
}

// Work is what a part of a step computes.
type Work struct {
	// Tokens is the number computed, Sequences of how many sequences.
	Tokens, Sequences int
	// Squares is Σ(end²−start²), Context Σend.
	Squares, Context float64
	// Samples is how many tokens are drawn.
	Samples int
}

// StepWork is what a step computes: prompt chunks, and single tokens with their drafts.
type StepWork struct{ Prefill, Decode Work }

// Add adds one sequence, of which the step computes tokens from position start
// on. A single token after others is decode's, also if it ends a prompt: it costs
// the same.
func (w *StepWork) Add(start, tokens int, sampled bool) {
	part := &w.Prefill
	if tokens == 1 && start > 0 {
		part = &w.Decode
	}
	begin, end := float64(start), float64(start+tokens)
	part.Sequences++
	part.Tokens += tokens
	part.Squares += end*end - begin*begin
	part.Context += end
	if sampled {
		part.Samples++
	}
}

// AddDrafts adds one sequence that decodes, of which the step computes its last token, at
// position start, and so many drafts of the next ones, after each of which a token may be
// drawn.
func (w *StepWork) AddDrafts(start, drafts int) {
	begin, end := float64(start), float64(start+1+drafts)
	w.Decode.Sequences++
	w.Decode.Tokens += 1 + drafts
	w.Decode.Squares += end*end - begin*begin
	w.Decode.Context += end
	w.Decode.Samples += 1 + drafts
}

// Empty is whether nothing is computed.
func (w StepWork) Empty() bool { return w.Prefill.Tokens == 0 && w.Decode.Tokens == 0 }

// variable is the part of the time in milliseconds that grows with the work.
func (t Terms) variable(w Work) float64 {
	return t.PerTokenMs*float64(w.Tokens) + t.PerSquareMs*w.Squares + t.PerContextTokenMs*w.Context + t.PerSampleMs*float64(w.Samples)
}

func regimeOf(regimes []Regime, tokens int) Terms {
	for _, r := range regimes {
		if r.UpTo == 0 || tokens <= r.UpTo {
			return r.Terms
		}
	}
	return regimes[len(regimes)-1].Terms
}

// Predict is the time of a step. The base of single tokens is mostly the time to read the
// weights, which a mixed step reads once and while it computes its prompts: it costs the
// longer of that base and the prompts' whole time, and what grows with the single tokens. A
// profile that was measured says in Mixed how much that is. The profile must be valid.
func (p *Profile) Predict(w StepWork) time.Duration {
	var ms float64
	if w.Prefill.Tokens > 0 {
		terms := regimeOf(p.Prefill, w.Prefill.Tokens)
		ms = terms.BaseMs + terms.variable(w.Prefill)
	}
	if w.Decode.Tokens > 0 {
		terms := regimeOf(p.singles(w.Decode), w.Decode.Tokens)
		if w.Prefill.Tokens > 0 && len(p.Mixed) > 0 {
			added := regimeOf(p.Mixed, w.Decode.Tokens)
			ms = max(ms+added.BaseMs+added.variable(w.Decode), terms.BaseMs+terms.variable(w.Decode))
		} else {
			ms = max(ms, terms.BaseMs) + terms.variable(w.Decode)
		}
	}
	return milliseconds(ms)
}

// singles are the regimes of a step's single tokens.
func (p *Profile) singles(w Work) []Regime {
	if w.Tokens > w.Sequences && len(p.Verify) > 0 {
		return p.Verify
	}
	return p.Decode
}

// maxStepMs bounds what a step may take: a day.
const maxStepMs = 24 * 3600 * 1000

func milliseconds(ms float64) time.Duration {
	return time.Duration(min(ms, maxStepMs) * float64(time.Millisecond))
}

// Profile is the model as a profile, which predicts the same.
func (m Model) Profile() *Profile {
	prefill := []Regime{{Terms: Terms{BaseMs: m.BaseMs, PerTokenMs: m.PerTokenMs, PerSquareMs: m.PerSquareMs}}}
	decode := []Regime{{Terms: Terms{BaseMs: m.BaseMs, PerTokenMs: m.PerTokenMs, PerContextTokenMs: m.PerContextTokenMs}}}
	return &Profile{Version: ProfileVersion, Prefill: prefill, Decode: decode, Verify: decode}
}

const (
	// maxRegimes bounds the regimes of one phase.
	maxRegimes = 64
	// maxTermMs bounds every coefficient.
	maxTermMs = 1e6
	// maxProfileBytes bounds a profile's file.
	maxProfileBytes = 4 << 20
	// MaxJitter bounds Jitter.
	MaxJitter = 2
)

// Validate checks that every step has a time.
func (p *Profile) Validate() error {
	switch {
	case p.Version != ProfileVersion:
		return fmt.Errorf("version %d: this program reads version %d", p.Version, ProfileVersion)
	case !(p.Jitter >= 0 && p.Jitter <= MaxJitter): // so that NaN is refused too
		return fmt.Errorf("jitter: %v is outside 0 to %d", p.Jitter, MaxJitter)
	case p.Threads < 0:
		return fmt.Errorf("threads: %d is negative", p.Threads)
	}
	for _, phase := range []struct {
		name     string
		regimes  []Regime
		optional bool
	}{{"prefill", p.Prefill, false}, {"decode", p.Decode, false}, {"mixed", p.Mixed, true}, {"verify", p.Verify, true}} {
		if phase.optional && len(phase.regimes) == 0 {
			continue
		}
		if err := validateRegimes(phase.regimes); err != nil {
			return fmt.Errorf("%s%w", phase.name, err)
		}
	}
	if l := p.Limits; l != nil && !(finite(l.FLOPsPerSecond) && finite(l.ReadBytesPerSecond)) {
		return errors.New("limits: must be 0 (unknown) or above")
	}
	return nil
}

// finite is whether x is a number from 0 on.
func finite(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

func validateRegimes(regimes []Regime) error {
	if len(regimes) == 0 || len(regimes) > maxRegimes {
		return fmt.Errorf(": %d regimes: give 1 to %d", len(regimes), maxRegimes)
	}
	last := 0
	for i, r := range regimes {
		open := i == len(regimes)-1 && r.UpTo == 0
		if r.UpTo <= last && !open {
			return fmt.Errorf("[%d].up_to: %d is not above %d: order the regimes from small to large; only the last may have no end (0)", i, r.UpTo, last)
		}
		last = r.UpTo
		for _, term := range []struct {
			name string
			ms   float64
		}{
			{"base_ms", r.BaseMs}, {"per_token_ms", r.PerTokenMs}, {"per_square_ms", r.PerSquareMs},
			{"per_context_token_ms", r.PerContextTokenMs}, {"per_sample_ms", r.PerSampleMs},
		} {
			if !(term.ms >= 0 && term.ms <= maxTermMs) {
				return fmt.Errorf("[%d].%s: %v is outside 0 to %g", i, term.name, term.ms, float64(maxTermMs))
			}
		}
		if r.Terms == (Terms{}) {
			return fmt.Errorf("[%d]: all terms are 0", i)
		}
	}
	return nil
}

// ReadProfile reads a profile's file and validates it. A key that it does not
// know is an error.
func ReadProfile(r io.Reader) (*Profile, error) {
	p := new(Profile)
	if err := readStrictly(r, p, true); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return p, nil
}

// ReadProfileFile is ReadProfile of the file at path.
func ReadProfileFile(path string) (*Profile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: name a file that 'tandem profile --out' wrote", err)
	}
	defer file.Close()
	p, err := ReadProfile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// readStrictly decodes one JSON value and refuses what follows it.
func readStrictly(r io.Reader, into any, strict bool) error {
	limited := &io.LimitedReader{R: r, N: maxProfileBytes + 1}
	decoder := json.NewDecoder(limited)
	if strict {
		decoder.DisallowUnknownFields()
	}
	err := decoder.Decode(into)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = fmt.Errorf("at byte %d: unexpected data after the end", decoder.InputOffset())
		}
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case limited.N <= 0:
		return fmt.Errorf("the file is larger than %d bytes", maxProfileBytes)
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the file is truncated")
	case errors.As(err, &syntax):
		return fmt.Errorf("at byte %d: %w", syntax.Offset, err)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("unexpected %s in place of an object", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s: unexpected %s", kind.Field, kind.Value)
	}
	return err
}

// Write writes the profile as an indented JSON file.
func (p *Profile) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(p)
}
