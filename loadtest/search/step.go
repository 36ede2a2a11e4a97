// Package search finds the rate that a server can take: a sweep over rates, or
// bracketing and bisecting for an SLO.
//
// Anything may import it. It starts no goroutines and reads no clock; the caller runs
// each step.
package search

import "github.com/tandem-serving/tandem/loadtest/measure"

// Step is one rate that was tried. Its JSON is public.
type Step struct {
	// Rate is what was offered, requests a second.
	Rate float64 `json:"rate"`
	// Summary is what was measured.
	Summary *measure.Summary `json:"summary"`
	// Passed: the verdict is Stable and every objective was met. Unknown: the step
	// tells neither that nor the opposite, since the client was the bottleneck or the run
	// too short; it then counts neither for nor against its rate.
	Passed  bool `json:"passed"`
	Unknown bool `json:"unknown,omitempty"`
	// Why it did not pass, in one sentence; empty if it did.
	Why string `json:"why,omitempty"`
	// Interrupted: the user ended the step early; what was measured stands, but tells
	// nothing of its rate.
	Interrupted bool `json:"interrupted,omitempty"`
	// Client says why the client's side, not the server, limited the step; empty if it
	// did not.
	Client string `json:"client_limit,omitempty"`
}

// Result is a finished search. Its JSON is public.
type Result struct {
	// Steps in rising order of rate, those past the breaking point included.
	Steps []Step `json:"steps"`
	// Knee is the rate at which latency begins to rise faster than the rate, nil if
	// the steps do not show it; Breaking is the least rate that was not Stable.
	Knee     *float64 `json:"knee_rps"`
	Breaking *float64 `json:"breaking_rps"`
	// MaxRate is the highest rate that passed, nil if none did; with the bracket it
	// was found in, up to the least rate that failed. MaxGoodput is the step with the
	// highest goodput's rate.
	MaxRate    *float64    `json:"max_rps"`
	Bracket    *[2]float64 `json:"bracket_rps,omitempty"`
	MaxGoodput *float64    `json:"max_goodput_rps"`
	// Limited says in a sentence that the server may do more than MaxRate, since of a
	// rate above it, and below any that failed, nothing could be told, and why; empty
	// if that is not so.
	Limited string `json:"limited,omitempty"`
}
