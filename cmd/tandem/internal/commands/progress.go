package commands

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows how far long work is: on a terminal one line that is written over
// and erased at the end, elsewhere a line every few seconds, none if it is done
// before. It may be reported to concurrently.
type progress struct {
	every time.Duration

	mu sync.Mutex
	liveLine
	last time.Time // of the last line, or the beginning
}

// liveLine is a line on a terminal that is written over.
type liveLine struct {
	out      io.Writer
	terminal bool // out is one that can do that
	shown    bool // there is a line on it
}

func newLiveLine(out io.Writer) liveLine { return liveLine{out: out, terminal: writesOver(out)} }

// eraseLine puts a terminal's cursor to the beginning of an empty line.
const eraseLine = "\r\x1b[K"

func (l *liveLine) show(format string, args ...any) {
	l.shown = true
	_, _ = fmt.Fprintf(l.out, eraseLine+format, args...)
}

// finish removes the line from a terminal. Calling it again does nothing.
func (l *liveLine) finish() {
	if l.shown {
		l.shown = false
		_, _ = fmt.Fprint(l.out, eraseLine)
	}
}

const (
	progressOnTerminal = 100 * time.Millisecond
	progressElsewhere  = 5 * time.Second
)

func newProgress(out io.Writer) *progress {
	p := &progress{liveLine: newLiveLine(out), every: progressElsewhere, last: time.Now()}
	if p.terminal {
		p.every = progressOnTerminal
	}
	return p
}

// stageText is what a stage of pkg/model or of an engine does, for people.
func stageText(stage string) string {
	return cmp.Or(map[string]string{
		"map":     "opening the model",
		"digest":  "reading and checking the weights",
		"pack":    "packing the weights",
		"profile": "measuring",
		"write":   "writing the weights",
	}[stage], stage)
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
		p.show("%s: %.0f%%", stageText(stage), percent)
		return
	}
	_, _ = fmt.Fprintf(p.out, "%s: %.0f%%\n", stageText(stage), percent)
}

func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.liveLine.finish()
}
