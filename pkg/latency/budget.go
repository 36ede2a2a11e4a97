package latency

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Total is a latency that stages add up to.
type Total int

// The totals.
const (
	// TotalTTFT is arrival to first token: the stages up to api.StagePrefill.
	TotalTTFT Total = iota
	// TotalTPOT is the time per output token after the first: the rest of the
	// stages, divided by those tokens.
	TotalTPOT
	// TotalE2E is arrival to last token: all stages.
	TotalE2E
	// NumTotals is how many there are.
	NumTotals
)

var totalNames = [NumTotals]string{"ttft", "tpot", "e2e"}

// String is the total's name, as in metrics: "ttft".
func (t Total) String() string {
	if t < 0 || t >= NumTotals {
		return fmt.Sprintf("total %d", int(t))
	}
	return totalNames[t]
}

// span is the first stage of a total and the one after its last.
func (t Total) span() (first, end api.Stage) {
	switch t {
	case TotalTTFT:
		return api.StageTokenize, api.StageTransferExposed
	case TotalTPOT:
		return api.StageTransferExposed, api.NumStages
	}
	return api.StageTokenize, api.NumStages
}

// Budget is how long the stages of a request may take, and their totals. 0 is not
// declared. Two are times per output token after the first, since the whole
// depends on how many tokens a client asks for: api.StageDecode and TotalTPOT.
type Budget struct {
	Stages [api.NumStages]time.Duration
	Totals [NumTotals]time.Duration
}

// Declared reports whether anything is.
func (b Budget) Declared() bool { return b != Budget{} }

// budgetFlag is the name under which a stage or total is declared.
func budgetFlag(name string) string { return "budget-" + strings.ReplaceAll(name, "_", "-") }

// longestBudget is the longest time that can be declared.
const longestBudget = time.Hour

// Validate checks each time, and that what is declared for the stages of a total
// fits into it. Its error begins with the flag to change.
func (b Budget) Validate() error {
	inRange := func(name string, d time.Duration) error {
		if d < 0 || d > longestBudget {
			return fmt.Errorf("%s is %v: it must be from 0 (no budget) to %v", budgetFlag(name), d, longestBudget)
		}
		return nil
	}
	for s, d := range b.Stages {
		if err := inRange(api.Stage(s).String(), d); err != nil {
			return err
		}
	}
	for t, d := range b.Totals {
		if err := inRange(Total(t).String(), d); err != nil {
			return err
		}
	}
	if ttft, e2e := b.Totals[TotalTTFT], b.Totals[TotalE2E]; ttft > e2e && e2e > 0 {
		return fmt.Errorf("%s is %v, and %s, which is part of it, %v: raise the one or lower the other", budgetFlag("e2e"), e2e, budgetFlag("ttft"), ttft)
	}
	if tpot, decode := b.Totals[TotalTPOT], b.Stages[api.StageDecode]; decode > tpot && tpot > 0 {
		return fmt.Errorf("%s is %v, and %s, which is part of it, %v: raise the one or lower the other", budgetFlag("tpot"), tpot, budgetFlag("decode"), decode)
	}
	for _, t := range []Total{TotalTTFT, TotalE2E} {
		if err := b.fits(t); err != nil {
			return err
		}
	}
	return nil
}

// fits checks that the stages of a total fit into it; of api.StageDecode one token,
// the fewest there can be.
func (b Budget) fits(t Total) error {
	var sum time.Duration
	var parts []string
	first, end := t.span()
	for s := first; s < end; s++ {
		if b.Stages[s] > 0 {
			sum += b.Stages[s]
			parts = append(parts, fmt.Sprintf("%s %v", budgetFlag(s.String()), b.Stages[s]))
		}
	}
	if b.Totals[t] == 0 || sum <= b.Totals[t] {
		return nil
	}
	return fmt.Errorf("%s is %v, but its stages add up to %v: raise it or lower one of %s", budgetFlag(t.String()), b.Totals[t], sum, strings.Join(parts, ", "))
}

// Spent is what one request took. api.StageDecode is its whole, not per token.
type Spent struct {
	Stages          [api.NumStages]time.Duration
	TTFT, TPOT, E2E time.Duration
	// Tokens is how many the request generated.
	Tokens int
}

// Total is what a request took of a total; it has no TPOT with one token.
func (s *Spent) Total(t Total) (took time.Duration, ok bool) {
	switch t {
	case TotalTTFT:
		return s.TTFT, true
	case TotalTPOT:
		return s.TPOT, s.Tokens > 1
	}
	return s.E2E, true
}

// forGaps is a time for each token after the first. One that is too long for a time.Duration is half of
// the longest: more than anything takes, and other budgets can be added to it.
func (s *Spent) forGaps(each time.Duration) time.Duration {
	const longest = time.Duration(math.MaxInt64 / 2)
	gaps := time.Duration(max(s.Tokens-1, 0))
	if gaps > 0 && each > longest/gaps {
		return longest
	}
	return each * gaps
}

// Breach is a budget that a request exceeded.
type Breach struct {
	// Stage broke the budget.
	Stage api.Stage
	// Exceeded are the declared totals that the request exceeded.
	Exceeded [NumTotals]bool
}

// Check reports whether a request exceeded its budget, and which stage broke it:
// of the stages of the totals that it exceeded, the one furthest over what was
// declared for it. Stages without a declaration have together what the others
// leave of the total; if that is what was exceeded the most, the longest of them
// is named. Where no total that a stage belongs to is declared, the stage is a
// limit by itself.
func (b *Budget) Check(s *Spent) (Breach, bool) {
	var breach Breach
	broken := false
	var most time.Duration
	// worse remembers the stage that is furthest over.
	worse := func(stage api.Stage, over time.Duration) {
		if !broken || over > most {
			breach.Stage, most = stage, over
		}
		broken = true
	}
	for t := range NumTotals {
		if b.exceeded(t, s) {
			breach.Exceeded[t] = true
			b.blame(t, s, worse)
		}
	}
	for stage := range api.NumStages {
		if over := s.Stages[stage] - b.allowed(stage, s); b.Stages[stage] > 0 && over > 0 && !b.Bounded(stage) {
			worse(stage, over)
		}
	}
	return breach, broken
}

// BrokenBy is the stage that is furthest over, of those of one total.
func (b *Budget) BrokenBy(t Total, s *Spent) (stage api.Stage) {
	var most time.Duration
	first := true
	b.blame(t, s, func(of api.Stage, over time.Duration) {
		if first || over > most {
			stage, most, first = of, over, false
		}
	})
	return stage
}

// Bounded reports whether a total that the stage belongs to is declared.
func (b *Budget) Bounded(stage api.Stage) bool {
	part := TotalTTFT
	if stage >= api.StageTransferExposed {
		part = TotalTPOT
	}
	return b.Totals[part] > 0 || b.Totals[TotalE2E] > 0
}

// allowed is what a request may spend on a stage that is declared.
func (b *Budget) allowed(stage api.Stage, s *Spent) time.Duration {
	if stage == api.StageDecode {
		return s.forGaps(b.Stages[stage])
	}
	return b.Stages[stage]
}

func (b *Budget) exceeded(t Total, s *Spent) bool {
	took, ok := s.Total(t)
	return ok && b.Totals[t] > 0 && took > b.Totals[t]
}

// blame tells worse how far over each stage of an exceeded total is that took any time
// at all.
func (b *Budget) blame(t Total, s *Spent, worse func(api.Stage, time.Duration)) {
	left := b.Totals[t]
	if t == TotalTPOT {
		left = s.forGaps(left)
	}
	var rest time.Duration   // spent on stages without a declaration
	longest := api.Stage(-1) // of those
	first, end := t.span()
	for stage := first; stage < end; stage++ {
		if b.Stages[stage] == 0 {
			rest += s.Stages[stage]
			if longest < 0 || s.Stages[stage] > s.Stages[longest] {
				longest = stage
			}
			continue
		}
		left -= b.allowed(stage, s)
		if s.Stages[stage] > 0 {
			worse(stage, s.Stages[stage]-b.allowed(stage, s))
		}
	}
	if rest > 0 {
		worse(longest, rest-max(left, 0))
	}
}
