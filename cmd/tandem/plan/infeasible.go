package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// Infeasible is the error if no number of workers keeps the SLO.
type Infeasible struct {
	// Reason says why, in one sentence.
	Reason string
	// Nearest is the SLO with the lowest bounds that can be kept, as text, to be asked for in its place.
	Nearest string
}

// Error implements error.
func (e *Infeasible) Error() string {
	return "infeasible, because " + e.Reason + ": the nearest feasible SLO is " + e.Nearest
}

// margin is how much longer than a lone request's times the nearest feasible bounds are:
// nobody has a mesh to himself.
const margin = 1.2

// possible reports the bounds that not even a request with the mesh to itself keeps.
func (f *formulas) possible() error {
	nearest := slices.Clone(f.askedSLO.Terms)
	reason := ""
	for i, t := range f.slo.Terms {
		least, why := f.least(t)
		if bound := seconds(least * margin); t.Bound < bound && (reason != "" || least > t.Bound.Seconds()) {
			if reason == "" {
				reason = fmt.Sprintf("%s%s is too tight: %s", t, f.headroom.ofCalls(), why)
			}
			nearest[i].Bound = bound
		}
	}
	if reason == "" {
		return nil
	}
	return &Infeasible{Reason: reason, Nearest: measure.SLO{Terms: nearest}.String()}
}

// least is the latency of a term without any other request, in seconds, and why it is that
// long; 0 if the formulas do not tell.
func (f *formulas) least(t measure.Term) (least float64, why string) {
	step := 0.0
	if f.decode.steps > 0 {
		step = f.decode.stepSeconds(1)
	}
	switch t.Latency {
	case "ttft":
		least = f.promptQuantile(quantile(t))
		return least, fmt.Sprintf("%s of the prompts takes %s to compute alone", t.Quantile(), short(least))
	case "tpot", "itl", "second_token":
		return step, fmt.Sprintf("a decode step takes %s for one answer alone", short(step))
	}
	least = f.promptQuantile(0.5) + f.decode.steps*step
	return least, fmt.Sprintf("a request of median prompt and mean answer takes %s alone", short(least))
}

// seconds is a time with two digits, rounded up.
func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(s))-1)
	return time.Duration(math.Ceil(s/unit*(1-1e-9))*unit*1e9 + 0.5).Round(time.Microsecond)
}

// short is a time in seconds for people.
func short(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}
