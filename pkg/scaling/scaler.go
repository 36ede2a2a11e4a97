package scaling

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Size is how many workers a pool has and should have.
type Size struct {
	Workers, Desired int
	// Reason says in a short sentence why.
	Reason string
}

// Sizes are those of both pools.
type Sizes Pools[Size]

// margin is by how much the load may grow until a pool that shrinks would have to grow again.
const margin = 0.1

// Scaler follows a demand: sizes go up at once, and down when fewer workers have been enough for
// Config.DownAfter, even with margin more load.
type Scaler struct {
	config  Config
	began   time.Time
	current Pools[int]
	known   bool // current is
	history []wanted
}

// wanted is what would have been enough at a time.
type wanted struct {
	at time.Time
	Pools[int]
}

// New returns a scaler that has seen nothing; the configuration has to be valid.
func New(config Config) *Scaler { return &Scaler{config: config} }

// Evaluate takes in the demand and the pools as they are now, and returns the desired sizes.
// Times never run backwards. A size is within its bounds, grows with the load, and reaches what
// the demand needs with the first evaluation.
func (s *Scaler) Evaluate(now time.Time, d Demand, m Mesh) Sizes {
	if !s.known {
		s.known, s.began = true, now
		s.current = Pools[int]{s.config.Bounds.Prefill.clamp(m.Prefill.Workers), s.config.Bounds.Decode.clamp(m.Decode.Workers)}
	}
	up, why := s.config.size(d, m, 1)
	down, _ := s.config.size(d, m, 1+margin)
	s.remember(wanted{now, down})
	reason := func(current *int, up int, of func(wanted) int, bounds Range) string {
		lately := 0
		for _, w := range s.history {
			lately = max(lately, of(w))
		}
		switch {
		case up > *current:
			*current = up
		case lately < *current && !d.Partial && now.Sub(s.began) >= s.config.DownAfter:
			*current = max(lately, up)
		}
		switch {
		case *current > up && d.Partial:
			return why + "; not fewer, since not all routers say what they get"
		case *current > up:
			return fmt.Sprintf("%s; not fewer until that has been enough for %v", why, s.config.DownAfter)
		case *current == bounds.Max && bounds.Max > bounds.Min:
			return fmt.Sprintf("%s; %d is the most", why, bounds.Max)
		}
		return why
	}
	var out Sizes
	out.Prefill.Reason = reason(&s.current.Prefill, up.Prefill, func(w wanted) int { return w.Prefill }, s.config.Bounds.Prefill)
	out.Decode.Reason = reason(&s.current.Decode, up.Decode, func(w wanted) int { return w.Decode }, s.config.Bounds.Decode)
	out.Prefill.Workers, out.Prefill.Desired = m.Prefill.Workers, s.current.Prefill
	out.Decode.Workers, out.Decode.Desired = m.Decode.Workers, s.current.Decode
	return out
}

// remember adds to what would have been enough, and forgets what is longer ago than counts. What
// something later exceeds does not count any more, so that the history stays short.
func (s *Scaler) remember(w wanted) {
	s.history = slices.DeleteFunc(s.history, func(old wanted) bool {
		exceeded := old.Prefill <= w.Prefill && old.Decode <= w.Decode
		return exceeded || w.at.Sub(old.at) > s.config.DownAfter
	})
	s.history = append(s.history, w)
}

// size is how many workers a demand needs, so many times as large, and why.
func (c Config) size(d Demand, m Mesh, times float64) (Pools[int], string) {
	idle := d.RequestsPerSecond <= 0 && d.Waiting <= 0
	least := Pools[int]{c.Bounds.Prefill.Min, c.Bounds.Decode.Min}
	switch {
	case idle:
		return least, "no requests come"
	case !m.Prefill.Known && !m.Decode.Known:
		return c.unmeasured(m), "no worker has measured its steps yet"
	}
	n := needs(d, m, c.Utilisation, times)
	var out Pools[int]
	if m.PrefillOnly {
		prompts, answers := whole(n.prompts), whole(n.answers)
		wait := n.servers(d, n.prompts*c.Utilisation, prompts, c.Bounds.Prefill.Max)
		out.Prefill, out.Decode = c.Bounds.Prefill.clamp(spare(wait)), c.Bounds.Decode.clamp(spare(answers))
		return out, n.why(d, c, prompts+answers, wait+answers, spare(wait)+spare(answers))
	}
	share := n.prompts / (n.prompts + n.answers)
	if math.IsNaN(share) {
		share = 0
	}
	workers := whole(n.total)
	wait := n.servers(d, n.total*c.Utilisation, workers, c.Bounds.Prefill.Max+c.Bounds.Decode.Max)
	total := spare(wait)
	// Rounding keeps each pool from shrinking when the total grows.
	out.Prefill = c.Bounds.Prefill.clamp(int(math.Round(float64(total) * share)))
	out.Decode = c.Bounds.Decode.clamp(total - out.Prefill)
	out.Prefill = max(out.Prefill, c.Bounds.Prefill.clamp(total-out.Decode))
	return out, n.why(d, c, workers, wait, total)
}

// unmeasured is the size of pools of which nothing is known: that which they have, and at least one
// worker that can serve.
func (c Config) unmeasured(m Mesh) Pools[int] {
	out := Pools[int]{c.Bounds.Prefill.clamp(m.Prefill.Workers), c.Bounds.Decode.clamp(m.Decode.Workers)}
	switch {
	case out.Prefill+out.Decode > 0:
	case c.Bounds.Decode.Max > 0:
		out.Decode = 1
	default:
		out.Prefill = 1
	}
	return out
}

// whole is the fewest workers that have so much to do, at least one.
func whole(workers float64) int {
	if !(workers > 1) { // nor a number: no int is what becomes of it
		return 1
	}
	return int(min(math.Ceil(workers-1e-9), 2*MaxWorkers))
}

// why says what a demand needs: so many workers by their work, so many with those that keep waits
// short, and so many with those that may fail.
func (n need) why(d Demand, c Config, byWork, byWait, total int) string {
	text := fmt.Sprintf("%.3g requests/s of %.0f+%.0f tokens need %d in all at %.0f%% use", n.rate, d.PromptTokens, d.OutputTokens, byWork, 100*c.Utilisation)
	switch {
	case n.late:
		text += fmt.Sprintf(" (no number computes a prompt within %v)", n.ttft.Round(time.Millisecond))
	case n.slow:
		text += fmt.Sprintf(" (no number has a token within %v)", n.tpot.Round(time.Microsecond))
	case byWait > byWork:
		text += fmt.Sprintf(", %d for a first token within %v", byWait, n.ttft.Round(time.Millisecond))
	}
	if total > byWait {
		text += fmt.Sprintf(", and %d to spare", total-byWait)
	}
	return text
}
