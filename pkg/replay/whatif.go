package replay

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// Comparison is what routing with another configuration would have made of a log, compared with
// what it did.
type Comparison struct {
	// Requests were asked for. Each is one of Same, OtherWorkers, OtherMode, Refused, Sent and
	// Undecided.
	Requests int `json:"requests"`
	// Same were sent to the same workers, or refused, as they were.
	Same int `json:"same"`
	// OtherWorkers were sent to other workers, and OtherMode to one instead of two or the
	// other way round.
	OtherWorkers int `json:"other_workers"`
	OtherMode    int `json:"other_mode"`
	// Refused were sent and would have been refused, Reasons says why; Sent were refused and
	// would have been sent.
	Refused int            `json:"refused"`
	Reasons map[string]int `json:"reasons"`
	Sent    int            `json:"sent"`
	// Undecided are without a decision in the log or now.
	Undecided int `json:"undecided"`
	// Hedges are hedged attempts that the log has, and that were left out: which requests would have
	// been late is not known.
	Hedges int `json:"hedges_left_out"`
	// Longer and Shorter waited for longer, or less long, by a millisecond at least.
	Longer  int `json:"waited_longer"`
	Shorter int `json:"waited_shorter"`
	// Was and Would are the waits of those that were sent both times.
	Was   Waits `json:"was"`
	Would Waits `json:"would"`
	// Different are the first of those of OtherWorkers, OtherMode, Refused and Sent, in the order
	// in which they arrived, and NotListed is how many more there are.
	Different []Different `json:"different"`
	NotListed int         `json:"different_not_listed"`
	// Incomplete is Result's.
	Incomplete string `json:"incomplete,omitempty"`
}

// Different is a request that would have fared otherwise.
type Different struct {
	ID    string   `json:"id"`
	Was   Decision `json:"was"`
	Would Decision `json:"would"`
}

// Decision is what was decided on a request: Mode and workers, or why it is Refused.
type Decision struct {
	Mode    string `json:"mode,omitempty"`
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// maxDifferent is how many requests Comparison lists.
const maxDifferent = 1000

// Waits are how long requests waited at the router, in milliseconds.
type Waits struct {
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	MaxMS  float64 `json:"max_ms"`
}

// WhatIf asks what routing would have decided with the configuration that change makes of the
// recorded one. What workers do is as it was: their reports, their prefix caches and how long
// they took. Hedged attempts are left out. A request that goes to other workers takes as long there as it took; one that was
// refused takes as long as the others do on average. It fails if ctx ends before.
//
// It reads the log twice, and keeps about a kilobyte of each request.
func WhatIf(ctx context.Context, in io.ReadSeeker, change func(routing.Config) (routing.Config, error)) (Comparison, error) {
	h, err := readHistory(ctx, in)
	if err != nil {
		return Comparison{}, err
	}
	config, err := change(h.config)
	if err != nil {
		return Comparison{}, err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return Comparison{}, fmt.Errorf("the log has to be read a second time: %w", err)
	}
	if err := h.runAgain(ctx, in, config); err != nil {
		return Comparison{}, err
	}
	return h.compare(), nil
}

// compare says how what would have been differs from what was.
func (h *history) compare() Comparison {
	out := Comparison{Reasons: make(map[string]int), Different: []Different{}, Hedges: h.hedges, Incomplete: h.why}
	var was, would []time.Duration
	for _, r := range h.order {
		a, b := &r.was[0], &r.would
		out.Requests++
		if a.decision == nil || b.decision == nil {
			out.Undecided++
			continue
		}
		differs := true
		switch then, now := *a.decision, *b.decision; {
		case then == now, then.refused && now.refused:
			out.Same++
			differs = false
		case then.refused:
			out.Sent++
		case now.refused:
			out.Refused++
			out.Reasons[now.reason]++
		case (then.prefill == routing.Ref{}) != (now.prefill == routing.Ref{}):
			out.OtherMode++
		default:
			out.OtherWorkers++
		}
		switch {
		case !differs:
		case len(out.Different) < maxDifferent:
			out.Different = append(out.Different, Different{r.id, a.decision.exported(), b.decision.exported()})
		default:
			out.NotListed++
		}
		if !a.dispatched() || !b.dispatched() {
			continue
		}
		waited, waits := a.decided-a.arrived, b.decided-b.arrived
		was, would = append(was, waited), append(would, waits)
		switch {
		case waits-waited >= time.Millisecond:
			out.Longer++
		case waited-waits >= time.Millisecond:
			out.Shorter++
		}
	}
	out.Was, out.Would = waitsOf(was), waitsOf(would)
	return out
}

func waitsOf(waits []time.Duration) Waits {
	if len(waits) == 0 {
		return Waits{}
	}
	slices.Sort(waits)
	var sum time.Duration
	for _, w := range waits {
		sum += w
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	at := func(share float64) float64 {
		return ms(waits[max(int(math.Ceil(share*float64(len(waits))-1e-6))-1, 0)])
	}
	return Waits{ms(sum) / float64(len(waits)), at(0.5), at(0.99), ms(waits[len(waits)-1])}
}
