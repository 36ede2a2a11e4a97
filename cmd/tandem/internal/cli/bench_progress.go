package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// loadProgress shows a load test as it runs: on a terminal one line that is written
// over, elsewhere a line for each run. It is used by one goroutine at a time.
type loadProgress struct {
	out      io.Writer
	terminal bool
	what     string
	total    time.Duration
	last     record.Sample // of a second ago, for rates
	rate     string
	shown    bool
}

func newLoadProgress(out io.Writer) *loadProgress {
	return &loadProgress{out: out, terminal: isTerminal(out)}
}

// Begin says that a run begins.
func (p *loadProgress) Begin(what string, total time.Duration) {
	p.finish()
	p.what, p.total, p.last, p.rate = what, total, record.Sample{}, ""
	if !p.terminal {
		_, _ = fmt.Fprintf(p.out, "%s%s\n", what, forTime(total))
	}
}

func forTime(total time.Duration) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf(" for %v", total.Round(time.Second))
}

// Sample shows where the run is.
func (p *loadProgress) Sample(s record.Sample) {
	if !p.terminal {
		return
	}
	if d := (s.At - p.last.At).Seconds(); d >= 1 {
		p.rate = fmt.Sprintf(" · %.1f done/s · %.0f tokens/s", float64(s.Ended-p.last.Ended)/d, float64(s.Tokens-p.last.Tokens)/d)
		p.last = s
	}
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %.0f", p.total.Seconds())
	}
	failed := ""
	if s.Failed > 0 {
		failed = fmt.Sprintf(" · %d failed", s.Failed)
	}
	p.shown = true
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s · %.0f%s s · %d due · %d open%s%s", p.what, s.At.Seconds(), of, s.Due, s.Due-s.Ended, p.rate, failed)
}

// finish removes the line from a terminal. Calling it again does nothing.
func (p *loadProgress) finish() {
	if p.shown {
		p.shown = false
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
