package commands

import (
	"bytes"
	"io"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Invocation is invocation.
func Invocation(program string) string { return invocation(program) }

// Styles is styles.
func Styles(environ []string) bool { return styles(environ) }

// WritesOver is writesOver.
func WritesOver(stream any) bool { return writesOver(stream) }

// PrintSimulated is printSimulated.
var PrintSimulated = printSimulated

// NewProgress is newProgress, on a terminal or not.
func NewProgress(out io.Writer, terminal bool) (report func(stage string, done, total int64), finish func()) {
	p := newProgress(out)
	if terminal {
		p.terminal, p.every = true, progressOnTerminal
	}
	return p.report, p.finish
}

// WriteOutput is writeOutput.
func WriteOutput(path string, write func(io.Writer) error) error { return writeOutput(path, write) }

// NewLoadProgress is newLoadProgress, on a terminal or not.
func NewLoadProgress(out io.Writer, terminal bool) (progress loadtest.Progress, finish func()) {
	p := newLoadProgress(out)
	p.terminal = terminal
	return p, p.finish
}

// NewLoadProgressAfter is newLoadProgress of a single run that begins with a warm-up.
func NewLoadProgressAfter(out io.Writer, terminal bool, warmup time.Duration) (progress loadtest.Progress, finish func()) {
	p := newLoadProgress(out)
	p.terminal, p.warmup = terminal, warmup
	return p, p.finish
}

// Cost is the last line that generate prints of a request on a terminal.
func Cost(f *inferencev1.Finished) string {
	g := new(generation)
	g.finish(f)
	return g.cost()
}

// NewSimulateProgress is that of simulate, not on a terminal.
func NewSimulateProgress(out io.Writer) loadtest.Progress {
	return &simulateProgress{liveLine: newLiveLine(out)}
}

// MostFlags is mostFlags.
const MostFlags = mostFlags

// MainFlags is mainFlags.
var MainFlags = mainFlags

// AnnouncePart is announcePart.
var AnnouncePart = announcePart

// ShellQuoted is shellQuoted.
var ShellQuoted = shellQuoted

// Announce is announce.
var Announce = announce

// Top is what top prints of a list on a terminal of that size.
func Top(list *controlv1.ListWorkersResponse, columns, lines int) string {
	var text bytes.Buffer
	printTop(&text, newTopCommand(), topOf(list), columns, lines)
	return text.String()
}
