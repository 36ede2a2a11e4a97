package commands

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// processFlags are the flags of commands that run until they are stopped.
type processFlags struct{ format, level *string }

// addProcessFlags adds the flags of a long-running command: logging and --config.
func addProcessFlags(cmd *cobra.Command) processFlags {
	cmd.Flags().String("config", "", "YAML file with values for these flags")
	flags := processFlags{
		format: cmd.Flags().String("log-format", "text", "format of log lines on standard error: text or json"),
		level:  cmd.Flags().String("log-level", "warn", "lowest level of log lines to write: debug, info, warn or error"),
	}
	oneOf(cmd, "log-format", "text", "json")
	oneOf(cmd, "log-level", "debug", "info", "warn", "error")
	return flags
}

func (f processFlags) validate() error {
	_, err := telemetry.NewLogger(io.Discard, *f.format, *f.level)
	return err
}

// run starts a mesh or a part of one, and runs it to its end. start is given what its
// process logs, measures and shows its progress with, and calls say with what to tell
// people, for the first time when all is loaded: with the memory outside Go's heap.
func (f processFlags) run(cmd *cobra.Command, start func(
	logger *slog.Logger, registry *prometheus.Registry, progress mesh.Progress, say func(outsideBytes int64, text string),
) error) error {
	logger, err := telemetry.NewLogger(cmd.ErrOrStderr(), *f.format, *f.level)
	if err != nil {
		return err
	}
	// Nobody may read what it prints any more, as after `| grep -m1 ready`: it serves all the same.
	signal.Ignore(syscall.SIGPIPE)
	progress := newProgress(cmd.ErrOrStderr())
	defer progress.finish()
	var loaded sync.Once
	said := false
	err = start(logger, telemetry.NewRegistry(), progress.report, func(outsideBytes int64, text string) {
		loaded.Do(func() {
			progress.finish()
			memory.KeepHeap(os.DirFS("/"), outsideBytes, logger)
		})
		said = true
		_, _ = io.WriteString(cmd.OutOrStdout(), text) // nobody left to tell
	})
	if !said && cmd.Context().Err() != nil {
		return &exitError{status: exitInterrupted, message: "interrupted before it was ready", cause: err}
	}
	if err != nil {
		if elsewhere := notOnCommandLine(cmd, err); elsewhere != nil {
			return elsewhere
		}
	}
	return err
}

// announcement is made of lines of a name and what there is to say about it.
type announcement struct{ strings.Builder }

// line adds a line, unless there is nothing to say.
func (a *announcement) line(name, text string) {
	if text != "" {
		fmt.Fprintf(a, "%-9s %s\n", name, text)
	}
}

// noted puts a note in parentheses behind a text, which may end in one.
func noted(text, note string) string {
	if before, has := strings.CutSuffix(text, ")"); has {
		return before + "; " + note + ")"
	}
	return text + " (" + note + ")"
}

// urlOf is where something is served over HTTP; empty if it is not. A Unix socket has no URL, and
// is its address.
func urlOf(encrypted bool, address, path string) string {
	switch {
	case address == "", strings.HasPrefix(address, api.UnixScheme):
		return address
	case encrypted:
		return "https://" + address + path
	}
	return "http://" + address + path
}

// apiLine says where the router's HTTP API is; empty if it is not served.
func apiLine(encrypted bool, address string) string {
	if address == "" {
		return ""
	}
	return noted(urlOf(encrypted, address, "/v1"), "OpenAI's API")
}
