package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Exit statuses: what shells and containers make of them is their convention.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

type exitError struct {
	status  int
	message string
	cause   error
}

func (e *exitError) Error() string { return e.message }
func (e *exitError) Unwrap() error { return e.cause }

// fail prints an error of a command as one line and returns the exit status.
func fail(w io.Writer, cmd *cobra.Command, err error) int {
	fmt.Fprintf(w, "tandem: %s\n", asCalled(cmd, oneLine(err.Error())))
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.status
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitFailed
	}
}

// oneLine joins the lines of an error: with a semicolon, unless they belong together, as those
// of a quoted list or object do.
func oneLine(text string) string {
	var line strings.Builder
	last := ""
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		word := strings.TrimSpace(part)
		switch {
		case line.Len() == 0:
		case word == "":
			continue
		case strings.HasPrefix(part, " ") || strings.HasPrefix(part, "\t"), strings.ContainsAny(last, "[{,"), strings.ContainsAny(word[:1], "]}"):
			line.WriteByte(' ')
		default:
			line.WriteString("; ")
		}
		line.WriteString(word)
		last = word[max(len(word)-1, 0):]
	}
	return line.String()
}

// interruptedOr is err, or, if ctx has ended, that this is why there is no result: what
// fails then, such as a process that was killed, is only its consequence.
func interruptedOr(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return &exitError{status: exitInterrupted, message: "interrupted before a measurement was complete", cause: err}
}

// loadFailure is the error of a load test with the exit status that it deserves.
func loadFailure(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return &exitError{status: exitInterrupted, message: err.Error(), cause: err}
}

// usageError is a mistake on the command line, or in the setting of a flag that the
// problem begins with.
func usageError(cmd *cobra.Command, problem string) error {
	return settingsError(cmd, errors.New(problem))
}

// settingsError is the error of checking the settings of cmd. It begins with the flag
// that it is about, and is a mistake on the command line unless that flag was set in
// the environment or a file.
func settingsError(cmd *cobra.Command, err error) error {
	if err == nil || said(err) {
		return err
	}
	if elsewhere := notOnCommandLine(cmd, err); elsewhere != nil {
		return elsewhere
	}
	if errors.Is(err, fs.ErrNotExist) { // the command line may be right, and the file late
		return err
	}
	return &exitError{status: exitUsage, message: fmt.Sprintf("%s'%s --help'", then(err.Error(), "see "), cmd.CommandPath()), cause: err}
}

// said reports whether an error says already which setting is wrong, and where that is from.
func said(err error) bool {
	_, exit := errors.AsType[*exitError](err)
	_, source := errors.AsType[*sourceError](err)
	return exit || source
}

// notOnCommandLine is an error that begins with a flag of cmd which was set in the
// environment or a file; then it begins with the variable, or the file, its line and the
// key instead. Nil: the error is none of those.
func notOnCommandLine(cmd *cobra.Command, err error) *sourceError {
	name, isFlag := strings.CutPrefix(err.Error(), "--")
	name, _, _ = strings.Cut(name, " ")
	name = strings.TrimSuffix(name, ":")
	f := cmd.Flags().Lookup(name)
	if !isFlag || f == nil || !f.Changed || onCommandLine(cmd, name) {
		return nil
	}
	problem := strings.TrimPrefix(err.Error(), "--"+name)
	if source := settings.Source(f); source != settings.EnvironmentName(name) {
		return &sourceError{message: source + ": " + name + problem, cause: err}
	}
	return &sourceError{message: "environment variable " + settings.EnvironmentName(name) + problem, cause: err}
}

// sourceError is about a value that is not from the command line, and begins with where
// it is from.
type sourceError struct {
	message string
	cause   error
}

func (e *sourceError) Error() string { return e.message }
func (e *sourceError) Unwrap() error { return e.cause }

// then is a problem, or a question, with what to do behind it.
func then(problem, do string) string {
	if strings.HasSuffix(problem, "?") {
		return problem + " " + strings.ToUpper(do[:1]) + do[1:]
	}
	return problem + ": " + do
}

// flagProblem is what is wrong with a flag, in words instead of Go's.
func flagProblem(err error) string {
	invalid, is := errors.AsType[*pflag.InvalidValueError](err)
	if !is {
		return err.Error()
	}
	return fmt.Sprintf("--%s: %s", invalid.GetFlag().Name, settings.Problem(invalid.GetFlag(), invalid.GetValue(), err))
}

// exactly is cobra.ExactArgs with an error that names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usageError(cmd, fmt.Sprintf("%s needs %s", cmd.CommandPath(), names[len(args)]))
		}
		if len(args) > len(names) {
			return usageError(cmd, fmt.Sprintf("%s takes no argument %q", cmd.CommandPath(), args[len(names)]))
		}
		return nil
	}
}

// atLeastOne is for any number of arguments of a kind, named what.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError(cmd, fmt.Sprintf("%s needs %s", cmd.CommandPath(), what))
		}
		return nil
	}
}

// atMostOne is for an argument, named what, that may be left out.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageError(cmd, fmt.Sprintf("%s takes one %s, not also %q", cmd.CommandPath(), what, args[1]))
		}
		return nil
	}
}

// statusOf is the gRPC status of an error, of the end of a context too.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// unreached is an address with why nothing was reached there, unless nobody listens, which is
// what one would think.
func unreached(addr string, err error) string {
	if problem := rpc.DialProblem(err); problem != "" && problem != syscall.ECONNREFUSED.Error() {
		return fmt.Sprintf("%s (%s)", addr, problem)
	}
	return addr
}

// routerFailure is callFailure of a call to the router's public services.
func routerFailure(err error, addr string, answered bool) error {
	const pass = "pass the router's gRPC address (its --listen, by default " + defaultAddr + ")"
	return callFailure(err, answered, callee{
		address: addr, pass: pass,
		otherwise: "serves others, such as operators or routers: " + pass,
		unreached: "cannot reach the router at %s: start it with 'tandem up', or pass --addr",
	})
}

// callee is whom a command calls, in the words of its errors.
type callee struct {
	address string
	pass    string // what to pass to reach it
	// otherwise says of a server that serves somebody else what it does, and what to pass;
	// unreached that nobody is at an address, %s.
	otherwise, unreached string
}

// callFailure turns the error of a call into one line that says what to do. answered: the other
// side was there at first.
func callFailure(err error, answered bool, to callee) error {
	if err == nil || said(err) {
		return err
	}
	fail := func(exit int, format string, args ...any) error {
		return &exitError{status: exit, message: fmt.Sprintf(format, args...), cause: err}
	}
	s := statusOf(err)
	switch {
	case s.Code() == codes.Canceled:
		return fail(exitInterrupted, "cancelled")
	case wantsTLS(err) != "":
		return fail(exitFailed, "%s: %s", to.address, wantsTLS(err))
	case rpc.AnsweredHTTP(err):
		return fail(exitFailed, "the server at %s speaks HTTP, not gRPC: %s", to.address, to.pass)
	case rpc.AnsweredOtherwise(err):
		return fail(exitFailed, "what listens at %s does not speak gRPC: %s, and --ca if it encrypts its connections", to.address, to.pass)
	case s.Code() == codes.Unavailable && rpc.Reason(err) == "" && answered:
		return fail(exitFailed, "lost the router at %s: see whether it still runs, then try again", to.address)
	case s.Code() == codes.Unavailable && rpc.Reason(err) == "":
		return fail(exitFailed, to.unreached, unreached(to.address, err))
	case s.Code() == codes.Unimplemented && strings.Contains(s.Message(), "unknown service"):
		return fail(exitFailed, "the server at %s %s", to.address, to.otherwise)
	case s.Code() == codes.Unimplemented:
		return fail(exitFailed, "the server at %s does not know this call: check that it is a router of this version", to.address)
	case s.Code() == codes.DeadlineExceeded && rpc.Reason(err) == "":
		return fail(exitFailed, "no answer from %s in time: pass a longer --timeout", to.address)
	}
	message := s.Message()
	if message == "" {
		message = s.Code().String()
	}
	if wait, ok := rpc.RetryAfter(err); ok {
		message += fmt.Sprintf("; try again in %s or later", wait.Round(time.Millisecond))
	}
	return fail(exitFailed, "%s", message)
}
