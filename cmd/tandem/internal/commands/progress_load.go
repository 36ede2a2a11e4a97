package commands

import (
	"fmt"
	"io"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// loadProgress shows a load test as it runs: on a terminal one line that is written
// over, elsewhere a line for each run and each minute of it. Of a sweep it says what all
// of it takes, and what is left. It is used by one goroutine at a time.
type loadProgress struct {
	liveLine
	what  string
	total time.Duration
	// warmup is the part of a single run that does not count; 0: there is none, or the plan of
	// a search tells it.
	warmup time.Duration
	// plan is that of a sweep, of which begun steps have begun; without steps: none.
	plan  loadtest.Plan
	begun int
	last  record.Sample // of a second ago, for rates; elsewhere of the last line
	rate  string
}

func newLoadProgress(out io.Writer) *loadProgress {
	return &loadProgress{liveLine: newLiveLine(out)}
}

// linesElsewhere is the time between lines where there is no terminal.
const linesElsewhere = time.Minute

// Plan says what a sweep takes.
func (p *loadProgress) Plan(plan loadtest.Plan) {
	p.finish()
	p.plan, p.begun = plan, 0
	_, _ = fmt.Fprintln(p.out, plan)
}

// Begin says that a run begins.
func (p *loadProgress) Begin(what string, total time.Duration) {
	p.finish()
	p.what, p.total, p.last, p.rate = what, total, record.Sample{}, ""
	p.begun++
	if !p.terminal {
		_, _ = fmt.Fprintf(p.out, "%s%s%s\n", what, p.forTime(), p.left("; ", 0))
	}
}

func (p *loadProgress) forTime() string {
	switch {
	case p.total == 0:
		return ""
	case p.warmup == 0:
		return fmt.Sprintf(" for %v", p.total.Round(time.Second))
	}
	return fmt.Sprintf(" for %v, of which the first %v are warm-up", p.total.Round(time.Second), p.warmup)
}

// left says how much of the whole sweep is left at a moment of this run; empty if there
// is no more than the run, or nobody knows.
func (p *loadProgress) left(separator string, at time.Duration) string {
	if p.begun < 1 || p.begun >= len(p.plan.Steps) {
		return ""
	}
	left := max(p.total-at, 0)
	for _, step := range p.plan.Steps[p.begun:] {
		left += step.Length
	}
	return fmt.Sprintf("%s%v left", separator, left.Round(time.Second))
}

// Sample shows where the run is.
func (p *loadProgress) Sample(s record.Sample) {
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %.0f", p.total.Seconds())
	}
	warming := ""
	if s.At < p.warmup {
		warming = ", warm-up"
	}
	where := fmt.Sprintf("%s · %.0f%s s%s%s", p.what, s.At.Seconds(), of, warming, p.left(" · ", s.At))
	if !p.terminal {
		if s.At-p.last.At >= linesElsewhere {
			p.last = s
			_, _ = fmt.Fprintln(p.out, where)
		}
		return
	}
	if d := (s.At - p.last.At).Seconds(); d >= 1 {
		p.rate = fmt.Sprintf(" · %.1f done/s · %.0f tokens/s", float64(s.Ended-p.last.Ended)/d, float64(s.Tokens-p.last.Tokens)/d)
		p.last = s
	}
	failed := ""
	if s.Failed > 0 {
		failed = fmt.Sprintf(" · %d failed", s.Failed)
	}
	p.show("%s · %d due · %d open%s%s", where, s.Due, s.Due-s.Ended, p.rate, failed)
}
