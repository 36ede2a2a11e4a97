package commands

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// processFlags are the flags of commands that run until they are stopped.
type processFlags struct{ format, level *string }

// addProcessFlags adds the flags of a long-running command: logging and --config.
func addProcessFlags(cmd *cobra.Command) processFlags {
	cmd.Flags().String("config", "", "YAML file with values for these flags")
	flags := processFlags{
		format: cmd.Flags().String("log-format", "text", "form of log lines on standard error: text or json"),
		level:  cmd.Flags().String("log-level", "warn", "least important log lines to write: debug, info, warn or error"),
	}
	oneOf(cmd, "log-format", "text", "json")
	oneOf(cmd, "log-level", "debug", "info", "warn", "error")
	return flags
}

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

// settingsError is the error of checking the settings of cmd. It begins with the flag
// that it is about, and is a mistake on the command line unless that flag was set in
// the environment or a file: then the variable, or the file and its line, come first.
func settingsError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), " ")
	f := cmd.Flags().Lookup(strings.TrimSuffix(name, ":"))
	if f == nil || !f.Changed || onCommandLine(cmd, f.Name) {
		return &exitError{status: exitUsage, message: usageError(cmd, err.Error()).Error(), cause: err}
	}
	if source := settings.Source(f); source != settings.EnvironmentName(f.Name) {
		return &fileError{source: source, cause: err}
	}
	return fmt.Errorf("environment variable %s: %w", settings.EnvironmentName(f.Name), err)
}

// fileError is about a value that stands in a configuration file: source is FILE:LINE.
type fileError struct {
	source string
	cause  error
}

func (e *fileError) Error() string { return e.source + ": " + e.cause.Error() }
func (e *fileError) Unwrap() error { return e.cause }
