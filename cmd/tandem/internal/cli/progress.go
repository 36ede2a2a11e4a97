package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows how far long work is: on a terminal one line that is written over
// and erased at the end, elsewhere a line every few seconds, none if it is done
// before. It may be reported to concurrently.
type progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration

	mu    sync.Mutex
	last  time.Time // of the last line, or the beginning
	shown bool      // there is a line on the terminal
}

const (
	progressOnTerminal = 100 * time.Millisecond
	progressElsewhere  = 5 * time.Second
)

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, terminal: isTerminal(out), every: progressElsewhere, last: time.Now()}
	if p.terminal {
		p.every = progressOnTerminal
	}
	return p
}

// stageText is what a stage of pkg/model or of an engine does, for people.
func stageText(stage string) string {
	switch stage {
	case "map":
		return "opening the model"
	case "digest":
		return "reading and checking the weights"
	case "pack":
		return "packing the weights"
	case "profile":
		return "measuring"
	case "write":
		return "writing the weights"
	}
	return stage
}

// report is told that done of total of a stage are done.
func (p *progress) report(stage string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) < p.every {
		return
	}
	p.last = now
	percent := 100.0
	if total > 0 {
		percent = 100 * float64(done) / float64(total)
	}
	if p.terminal {
		p.shown = true
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s: %.0f%%", stageText(stage), percent)
		return
	}
	_, _ = fmt.Fprintf(p.out, "%s: %.0f%%\n", stageText(stage), percent)
}

// finish removes the line from a terminal. Calling it again does nothing.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		p.shown = false
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
