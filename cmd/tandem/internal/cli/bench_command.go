package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/pkg/memory"
)

// argumentsKey is of the process's arguments in a command's context.
type argumentsKey struct{}

func withArguments(ctx context.Context, args []string) context.Context {
	return context.WithValue(ctx, argumentsKey{}, args)
}

// command is the arguments of the process that a command runs in, as a report may have
// them: without secrets.
func command(cmd *cobra.Command) []string {
	args, _ := cmd.Context().Value(argumentsKey{}).([]string)
	out := make([]string, len(args))
	flag := "" // the one whose value comes next
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		switch {
		case flag == "" && given && strings.HasPrefix(name, "--"):
			out[i] = name + "=" + withoutSecret(name, value)
		case flag == "" && (arg == "--openai-key" || arg == "--openai-header" || arg == "--openai"):
			out[i], flag = arg, arg
		default:
			out[i], flag = withoutSecret(flag, arg), ""
		}
	}
	return out
}

// hidden stands where a secret was.
const hidden = "***"

// withoutSecret is the value of a flag as others may see it. What a header says may be
// a secret, whatever its name.
func withoutSecret(flag, value string) string {
	switch flag {
	case "--openai-key":
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

// measured prints what a benchmark found, as one JSON object or by write; without a result
// it says why.
func measured[T any](cmd *cobra.Command, asJSON bool, result T, err error, write func(io.Writer, T) error) error {
	switch {
	case err != nil:
		return interruptedOr(cmd.Context(), err)
	case asJSON:
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	return write(cmd.OutOrStdout(), result)
}
