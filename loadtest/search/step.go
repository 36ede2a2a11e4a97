// Package search finds the rate a server can sustain: a sweep over rates, or bracketing
// and bisecting for an SLO.
//
// Anything may import it. It starts no goroutines and reads no clock; the caller runs
// each step.
package search

import "github.com/tandem-serving/tandem/loadtest/measure"

// Step is one rate that was tried. Its JSON is public.
type Step struct {
	// Rate offered, requests per second.
	Rate float64 `json:"rate"`
	// Summary is what was measured.
	Summary *measure.Summary `json:"summary"`
	// Passed: the verdict is Stable and every objective was met. Unknown: inconclusive,
	// since the client was the bottleneck, the run too short, or there was none; the step
	// then counts neither for nor against its rate.
	Passed  bool `json:"passed"`
	Unknown bool `json:"unknown,omitempty"`
	// Why it did not pass, in one sentence.
	Why string `json:"why,omitempty"`
	// Interrupted: the user ended the step early. Its figures are valid but inconclusive.
	Interrupted bool `json:"interrupted,omitempty"`
	// Client says why the client's side limited the step; empty if it did not.
	Client string `json:"client_limit,omitempty"`
}

// Result is the result of a search. Its JSON is public.
type Result struct {
	// Steps by rising rate, including those past the breaking point.
	Steps []Step `json:"steps"`
	// Knee is the rate above which latency rises faster than the rate, nil if not seen;
	// Breaking is the lowest rate that was not Stable.
	Knee     *float64 `json:"knee_rps"`
	Breaking *float64 `json:"breaking_rps"`
	// MaxRate is the highest rate that passed below every rate that failed, nil if none,
	// with its bracket up to the lowest rate that failed. MaxGoodput is the rate with the
	// highest goodput.
	MaxRate    *float64    `json:"max_rps"`
	Bracket    *[2]float64 `json:"bracket_rps,omitempty"`
	MaxGoodput *float64    `json:"max_goodput_rps"`
	// PassedAbove are the rates that passed although a lower one failed. They contradict
	// MaxRate, so with any the search is not conclusive.
	PassedAbove []float64 `json:"passed_above_failed_rps,omitempty"`
	// Limited says in a sentence why the server may sustain more than MaxRate: a higher
	// rate, below any that failed, was inconclusive. Empty otherwise.
	Limited string `json:"limited,omitempty"`
}
