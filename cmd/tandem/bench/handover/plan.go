package handover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Plan is what to measure.
type Plan struct {
	// Mesh is what serves, but for what KV goes over.
	Mesh processes.Plan `json:"-"`
	// Transports are what KV goes over, each in a mesh of its own: "tcp", "unix" or "shm".
	Transports []string `json:"transports"`
	// PromptTokens is the length of the prompts, drawn from the first Vocabulary token
	// ids; OutputTokens that of the answers.
	PromptTokens int `json:"prompt_tokens"`
	OutputTokens int `json:"output_tokens"`
	Vocabulary   int `json:"vocabulary"`
	// Requests are measured over each transport, after Warmup that are not. The first
	// Checked of them are served again, by one worker.
	Requests int `json:"requests"`
	Warmup   int `json:"warmup"`
	Checked  int `json:"checked"`
	// Seed is where the prompts come from.
	Seed uint64 `json:"seed"`
}

// Validate checks the plan; the error names the flag and says what to do.
func (p Plan) Validate() error {
	switch {
	case len(p.Transports) == 0:
		return fmt.Errorf("--transport: is empty: pass some of tcp, unix and shm")
	case p.Vocabulary < 2:
		return fmt.Errorf("--vocabulary: %d is under 2", p.Vocabulary)
	}
	for _, t := range p.Transports {
		if t != "tcp" && t != "unix" && t != "shm" {
			return fmt.Errorf("--transport: %q is neither tcp, unix nor shm", t)
		}
	}
	return cmp.Or(
		bounds.Within("--prompt", p.PromptTokens, 2, 1<<17),
		bounds.Within("--output", p.OutputTokens, 2, 4096, ": the second token is what waits for the transfer"),
		bounds.Within("--requests", p.Requests, 1, 100_000),
		bounds.Within("--warmup", p.Warmup, 0, 1000),
		bounds.Within("--check", p.Checked, 0, p.Requests, " (--requests)"),
	)
}

// Result is what was measured.
type Result struct {
	Plan
	Ways []Way `json:"ways"`
	// Valid: the run says something of the program. Reason says why not. Nil where
	// there were too few requests to tell.
	Valid  *bool  `json:"valid,omitempty"`
	Reason string `json:"reason,omitempty"`
}

const (
	// maxSpread is by how much the ninth of ten times to the first token may exceed
	// the middle one: prompts are of one length, so beyond that something else had the
	// machine.
	maxSpread = .25
	// judged is how many requests tell.
	judged = 5
)

// judge says whether the machine was quiet.
func (r *Result) judge() {
	if r.Requests < judged {
		return
	}
	r.Valid = new(true)
	for _, way := range r.Ways {
		if spread := way.TTFT.P90/way.TTFT.P50 - 1; spread > maxSpread {
			*r.Valid = false
			r.Reason += fmt.Sprintf("%s: the p90 of TTFT is %.0f%% above the median: something else used the machine. ", way.Transport, 100*spread)
		}
	}
	r.Reason = strings.TrimSpace(r.Reason)
}

// Way is one transport. Times are milliseconds.
type Way struct {
	Transport string `json:"transport"`
	Requests  int    `json:"requests"`
	// KVBytes is the payload of one transfer.
	KVBytes uint64 `json:"kv_bytes"`
	// Tail is from when the last layer was computed to when the receiver had
	// committed, by the prefill worker's clock.
	Tail Spread `json:"last_layer_to_committed_ms"`
	// Head is from when the last layer was computed to the first token, by both
	// clocks: Tail less Exposed of each request. It is the rest of the forward pass and
	// sampling; the commit carries the token, so Tail cannot be shorter.
	Head Spread `json:"last_layer_to_first_token_ms"`
	// Exposed is from the first token to when the decode worker could go on, and
	// SecondToken to the second token, by the router's clock; TTFT to the first.
	Exposed     Spread `json:"transfer_exposed_ms"`
	SecondToken Spread `json:"second_token_ms"`
	TTFT        Spread `json:"ttft_ms"`
	// Transfer is from the first slice offered to the commit, hidden and exposed.
	Transfer Spread `json:"transfer_ms"`
	// Checked requests gave the same tokens on one worker that computed all KV itself.
	Checked int `json:"checked"`
}

// Spread is the distribution of a time.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	Max float64 `json:"max"`
}

// spreadOf is that of some times, one at least, by the nearest rank.
func spreadOf(times []time.Duration) Spread {
	sorted := slices.Sorted(slices.Values(times))
	at := func(q float64) float64 { return stats.Milliseconds(stats.Quantile(sorted, q)) }
	return Spread{at(.5), at(.9), at(1)}
}
