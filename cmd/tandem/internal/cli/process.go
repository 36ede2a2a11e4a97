package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// processFlags are the flags of commands that run until they are stopped.
type processFlags struct{ format, level *string }

// addProcessFlags adds the flags of a long-running command: logging and --config.
func addProcessFlags(cmd *cobra.Command) processFlags {
	cmd.Flags().String("config", "", "YAML file with values for these flags")
	return processFlags{
		format: cmd.Flags().String("log-format", "text", "form of log lines on standard error: text or json"),
		level:  cmd.Flags().String("log-level", "warn", "least important log lines to write: debug, info, warn or error"),
	}
}

// validate checks the flags' values.
func (f processFlags) validate() error {
	_, err := telemetry.NewLogger(io.Discard, *f.format, *f.level)
	return err
}

// build makes what a process logs and measures with.
func (f processFlags) build(stderr io.Writer) (*slog.Logger, *prometheus.Registry, error) {
	logger, err := telemetry.NewLogger(stderr, *f.format, *f.level)
	if err != nil {
		return nil, nil, err
	}
	return logger, telemetry.NewRegistry(), nil
}

// progress shows how far loading is: one line that is written over on a terminal,
// a line every few seconds elsewhere. It may be reported to concurrently.
type progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration

	mu    sync.Mutex
	last  time.Time
	shown bool
}

const (
	progressOnTerminal = 100 * time.Millisecond
	progressElsewhere  = 5 * time.Second
)

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, every: progressElsewhere}
	if file, is := out.(*os.File); is {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.terminal, p.every = true, progressOnTerminal
		}
	}
	return p
}

// report is told that done of total bytes of a stage are done.
func (p *progress) report(stage string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.shown && now.Sub(p.last) < p.every {
		return
	}
	p.last, p.shown = now, true
	percent := 100.0
	if total > 0 {
		percent = 100 * float64(done) / float64(total)
	}
	if p.terminal {
		_, _ = fmt.Fprintf(p.out, "\r\x1b[Kloading the model: %s %.0f%%", stage, percent)
		return
	}
	_, _ = fmt.Fprintf(p.out, "loading the model: %s %.0f%%\n", stage, percent)
}

// finish removes the line from a terminal.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.shown {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
