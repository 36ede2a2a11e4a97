package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/pkg/memory"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure servers, engines and Tandem's own parts",
		Example: `  tandem bench serve --rate 10 --duration 30s
  tandem bench serve --sweep --slo "ttft:p99<500ms,tpot:p99<30ms" --report sweep.html
  tandem bench client --streams 2000`,
	}
	asGroup(cmd)
	cmd.AddCommand(
		newBenchServeCommand(),
		newBenchModesCommand(), newBenchOverloadCommand(),
		newBenchSimulatedCommand(),
		newBenchCompareCommand(),
		newBenchClientCommand(),
		newBenchEngineCommand(),
		newBenchSchedulerCommand(),
		newBenchSpeculationCommand(),
		newBenchTokenizerCommand(),
		newBenchGrammarCommand(),
		newBenchTracingCommand(),
		newBenchTransferCommand(),
		newBenchHandoverCommand(),
		newBenchRouterCommand(),
		newBenchEvidenceCommand(),
	)
	return cmd
}

// command is the arguments of the process that a command runs in, as a report may have
// them: without secrets.
func command(cmd *cobra.Command) []string {
	args := processOf(cmd.Context()).Args
	out := make([]string, len(args))
	flag := "" // the one whose value comes next
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		switch {
		case flag == "" && given && strings.HasPrefix(name, "--"):
			out[i] = name + "=" + withoutSecret(name, value)
		case flag == "" && slices.Contains(secretFlags, arg):
			out[i], flag = arg, arg
		default:
			out[i], flag = withoutSecret(flag, arg), ""
		}
	}
	return out
}

// secretFlags have values that withoutSecret changes.
var secretFlags = []string{"--api-key", "--openai-key", "--openai-header", "--openai"}

const hidden = "***"

// withoutSecret is the value of a flag as others may see it. What a header says may be
// a secret, whatever its name.
func withoutSecret(flag, value string) string {
	switch flag {
	case "--api-key", "--openai-key":
		return hidden
	case "--openai-header":
		if name, _, ok := strings.Cut(value, ":"); ok {
			return name + ": " + hidden
		}
		return hidden
	}
	scheme, rest, found := strings.Cut(value, "://")
	switch {
	case found:
		scheme += "://"
	case flag == "--openai": // it may have none
		scheme, rest = "", value
	default:
		return value
	}
	host := len(rest)
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		host = end
	}
	if user := strings.LastIndexByte(rest[:host], '@'); user >= 0 {
		rest = hidden + rest[user:]
	}
	return scheme + rest
}

// deferCollector keeps Go's collector out of a measurement where memory allows.
func deferCollector() (restore func()) {
	available, known := memory.Available(os.DirFS("/"))
	if !known {
		return func() {}
	}
	return drive.DeferCollector(available.Bytes)
}

// addBenchJSON is addJSON for a benchmark, no flag of which belongs in an environment or
// a file. The other flags are there already.
func addBenchJSON(cmd *cobra.Command, usage string) *bool {
	on := addJSON(cmd, usage)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { onlyOnCommandLine(cmd, f.Name) })
	return on
}

// progressLines writes lines to standard error, or none if the result is JSON.
func progressLines(cmd *cobra.Command, asJSON bool) func(line string) {
	if asJSON {
		return func(string) {}
	}
	return func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
}

// measured shows what a benchmark found; without a result it says why.
func measured[T any](cmd *cobra.Command, asJSON bool, result T, err error, write func(io.Writer, T) error) error {
	if err != nil {
		return interruptedOr(cmd.Context(), err)
	}
	return show(cmd, asJSON, result, write)
}

// planArgument is a benchmark's plan as an argument of a part of it, which runs in a
// process of its own. Every plan can be written as JSON.
func planArgument(plan any) string {
	text, _ := json.Marshal(plan)
	return string(text)
}

// parsePlan reads what planArgument wrote for a part of command.
func parsePlan[P any](command, text string) (plan P, err error) {
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		return plan, fmt.Errorf("only 'tandem %s' runs this command, and gives it a plan: %w", command, err)
	}
	return plan, nil
}
