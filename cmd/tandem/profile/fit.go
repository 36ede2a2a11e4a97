package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// fewest repeats for a point's spread to count.
const fewest = 8

// fit makes the profile and compares it with every point.
func (r *Result) fit() error {
	phases := make(map[string][]latency.Measured)
	var spreads []float64
	for _, p := range r.Points {
		switch p.Kind {
		case Prefill:
			phases[Prefill] = append(phases[Prefill], latency.Measured{Work: p.work.Prefill, Ms: p.MedianMs})
		case Decode, Verify:
			phases[p.Kind] = append(phases[p.Kind], latency.Measured{Work: p.work.Decode, Ms: p.MedianMs})
		}
		if p.Repeats >= fewest {
			spreads = append(spreads, p.Spread)
		}
	}
	if len(phases[Prefill]) == 0 || len(phases[Decode]) == 0 {
		return errors.New("profile: too little time for one step of each kind: pass a longer --duration")
	}
	profile := &latency.Profile{Version: latency.ProfileVersion, Errors: make(map[string]latency.FitError)}
	var err error
	if profile.Prefill, profile.Errors[Prefill], err = latency.Fit(phases[Prefill], latency.FitOptions{Square: true, Context: true, Sample: true, MostRegimes: 3}); err != nil {
		return err
	}
	if profile.Decode, profile.Errors[Decode], err = latency.Fit(phases[Decode], latency.FitOptions{Context: true, MostRegimes: 4}); err != nil {
		return err
	}
	if added := r.added(profile.Decode[len(profile.Decode)-1].PerContextTokenMs); len(added) > 0 {
		if profile.Mixed, _, err = latency.Fit(added, latency.FitOptions{MostRegimes: 2}); err != nil {
			return err
		}
		for i := range profile.Mixed {
			profile.Mixed[i].PerContextTokenMs = profile.Decode[len(profile.Decode)-1].PerContextTokenMs
		}
	}
	if tokenCounts(phases[Verify]) > 1 { // else it is not known what a draft costs
		if profile.Verify, profile.Errors[Verify], err = latency.Fit(phases[Verify], latency.FitOptions{Square: true, Context: true, MostRegimes: 4}); err != nil {
			return err
		}
	}
	var mixed []float64
	for _, p := range r.Points {
		p.FittedMs = float64(profile.Predict(p.work)) / float64(time.Millisecond)
		p.Error = p.FittedMs/p.MedianMs - 1
		if p.Kind == Mixed {
			mixed = append(mixed, p.Error)
		}
	}
	profile.Errors[Mixed] = latency.NewFitError(mixed)
	if len(spreads) > 0 {
		slices.Sort(spreads)
		profile.Jitter = math.Round(min(stats.Quantile(spreads, 0.5), latency.MaxJitter)*1e4) / 1e4
	}
	if err := profile.Validate(); err != nil {
		return fmt.Errorf("cannot fit a profile to the measurements: %w", err)
	}
	r.Profile = profile
	return nil
}

// tokenCounts is how many numbers of tokens were measured.
func tokenCounts(measured []latency.Measured) int {
	of := make(map[int]bool)
	for _, m := range measured {
		of[m.Work.Tokens] = true
	}
	return len(of)
}

// added is by how much single tokens lengthen a step with a prompt, less what their context
// costs: mixed steps compared with the steps of the same prompts alone. It is empty if that
// was measured for fewer than two numbers of tokens.
func (r *Result) added(perContextTokenMs float64) (added []latency.Measured) {
	sizes := make(map[int]bool)
	for _, p := range r.Points {
		if p.Kind != Mixed {
			continue
		}
		i := slices.IndexFunc(r.Points, func(o *Point) bool {
			return o.Kind == Prefill && o.Chunk == p.Chunk && o.ChunkStart == p.ChunkStart && o.ChunkSampled == p.ChunkSampled
		})
		if i < 0 {
			continue
		}
		// The least that is told from the noise of both.
		ms := max(p.MedianMs-r.Points[i].MedianMs-perContextTokenMs*p.work.Decode.Context, 0.01*p.MedianMs)
		added = append(added, latency.Measured{Work: p.work.Decode, Ms: ms})
		sizes[p.Batch] = true
	}
	if len(sizes) < 2 {
		return nil
	}
	return added
}

func (r *Result) reach(costs engine.Costs) {
	for _, p := range r.Points {
		prefill, decode := costs.Step(p.work)
		switch {
		case p.Kind == Prefill:
			r.FLOPsPerSecond = max(r.FLOPsPerSecond, prefill.FLOPs/p.MedianMs*1000)
		case p.Kind == Decode && p.Batch == 1:
			r.ReadBytesPerSecond = max(r.ReadBytesPerSecond, decode.ReadBytes/p.MedianMs*1000)
		}
	}
}

// limitsApart is how much lower than the best of several measurements of the same
// limits the others may be, as a share, on a machine that does nothing else.
const limitsApart = 0.15

// Limits makes one of several measurements of the same limits, from before a profile
// was taken to after: the best of each rate. It is valid if each was and they agree.
// How fast the machine should be nobody knows: it is compared with itself.
func Limits(measured ...latency.Limits) latency.Limits {
	return LimitsWithin(limitsApart, measured...)
}

// LimitsWithin is Limits where the others may be lower than the best by another share: a
// GPU's clock follows its heat and its power.
func LimitsWithin(apart float64, measured ...latency.Limits) latency.Limits {
	best := latency.Limits{Valid: len(measured) > 0}
	for _, l := range measured {
		best.FLOPsPerSecond = max(best.FLOPsPerSecond, l.FLOPsPerSecond)
		best.ReadBytesPerSecond = max(best.ReadBytesPerSecond, l.ReadBytesPerSecond)
	}
	for _, l := range measured {
		if !l.Valid || l.FLOPsPerSecond < (1-apart)*best.FLOPsPerSecond || l.ReadBytesPerSecond < (1-apart)*best.ReadBytesPerSecond {
			best.Valid = false
		}
	}
	return best
}
