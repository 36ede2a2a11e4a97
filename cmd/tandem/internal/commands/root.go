// Package commands is the command line of tandem, on cobra. Each command has a file, with its
// output; a command and its opposite share one.
//
// Only cmd/tandem imports it. A command uses the input and output streams of its Process and
// returns an error, which Run prints as one line; no command ends the process itself. A
// command closes the connections that it opens, and stops what it starts.
package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
)

// Process is what a command gets from its process.
type Process struct {
	// Program is how the program was called, as of os.Args[0]; empty: tandem.
	Program string
	// Args are the arguments without the program's name.
	Args    []string
	Environ []string
	// Interrupts are the Ctrl-C of a command that goes on after one. Nil: those of
	// the process.
	Interrupts <-chan os.Signal
	// Stdin is read by commands that say so.
	Stdin io.Reader
	// Stdout takes results, Stderr everything else.
	Stdout, Stderr io.Writer

	// helpFailed is why the help could not be written: cobra does not pass that on.
	helpFailed *error
}

// Run runs one command to its end and returns the exit status: 0 only if it did
// what it was asked for. The end of ctx asks it to finish early.
func Run(ctx context.Context, p Process) int {
	root := NewRoot(p.Environ)
	annotate(root, cobra.CommandDisplayNameAnnotation, invocation(p.Program))
	root.SetArgs(p.Args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	p.helpFailed = new(error)
	err := root.ExecuteContext(context.WithValue(ctx, processKey{}, p))
	if err = cmp.Or(err, *p.helpFailed); err != nil {
		return fail(p.Stderr, root, err)
	}
	return exitOK
}

// processKey is of the Process in a command's context.
type processKey struct{}

func processOf(ctx context.Context) Process {
	p, _ := ctx.Value(processKey{}).(Process)
	return p
}

// NewRoot builds the tree of commands. Their flags take values from environ too.
func NewRoot(environ []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "tandem",
		Short: "Serve large language models with prefill and decode on separate workers",
		Long: `Tandem serves large language models with prefill and decode on separate
workers, and ships the KV cache between them.

Every flag --some-name can also be set by the environment variable
TANDEM_SOME_NAME; the command line takes precedence.

Exit status: 0 if the command did what it was asked for, 1 if it failed, 2 if the
command line is wrong, 130 if Ctrl-C or SIGTERM ended it before it was done.`,
		Example: `  tandem up
  tandem generate --prompt "Once upon a time" --max-tokens 60`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := settings.Apply(cmd.Flags(), settings.File(cmd.Flags(), environ), environ); err != nil {
				return fileFailure(cmd.Root(), cmd.Name(), err)
			}
			return checkVariables(cmd, environ)
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagFailure)
	asGroup(root)
	root.Flags().BoolP("help", "h", false, "help for tandem") // cobra's would say how the program was called
	version := root.Flags().Bool("version", false, "print the version, as 'tandem version' does")
	settings.CommandLineOnly(root.Flags(), "version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return printVersion(cmd.OutOrStdout(), false)
		}
		return greet(cmd)
	}
	addHelp(root)
	root.SetHelpCommand(newHelpCommand())
	// Commands that take a configuration file; `config` knows them as well.
	configured := []func() *cobra.Command{newUpCommand, newServeCommand}
	addCommands(root, "Run a mesh", newUpCommand(), newServeCommand())
	addCommands(root, "Use it", newGenerateCommand(), newChatCommand())
	addCommands(root, "Operate it", newTopCommand(), newDoctorCommand(), newWorkersCommand(), newDrainCommand(), newUndrainCommand(), newPolicyCommand(), newKeysCommand(),
		newExplainCommand(), newBudgetCommand(), newProbeCommand(), newCertsCommand(), newEtcdAuthCommand())
	addCommands(root, "Measure", newBenchCommand(), newPlanCommand(), newSimulateCommand(), newProfileCommand(), newReplayCommand())
	root.AddCommand(newModelCommand(), newConfigCommand(configured...), newVersionCommand(), newCompletionCommand())
	return root
}

// addCommands adds commands under a heading of root's help.
func addCommands(root *cobra.Command, title string, children ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, child := range children {
		child.GroupID = title
	}
	root.AddCommand(children...)
}

func addJSON(cmd *cobra.Command, usage string) *bool {
	on := cmd.Flags().Bool("json", false, usage)
	onlyOnCommandLine(cmd, "json")
	return on
}

// show prints a result, as one JSON object or for people by write, which need not check what it
// prints: that goes to memory first.
func show[T any](cmd *cobra.Command, asJSON bool, result T, write func(io.Writer, T) error) error {
	if asJSON {
		write = func(w io.Writer, result T) error { return json.NewEncoder(w).Encode(result) }
	}
	var text bytes.Buffer
	if err := write(&text, result); err != nil {
		return err
	}
	_, err := text.WriteTo(cmd.OutOrStdout())
	return err
}

// indented writes a result as one JSON object of several lines.
func indented(w io.Writer, result any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}

// onlyOnCommandLine keeps flags out of environment and files. The names are flags
// of cmd, as a test of the whole tree checks.
func onlyOnCommandLine(cmd *cobra.Command, names ...string) {
	settings.CommandLineOnly(cmd.Flags(), names...)
}

// newHelpCommand replaces cobra's, whose exit status is 0 for a command that does
// not exist.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "help [COMMAND]",
		Short:       "Print the help of a command",
		Example:     "  tandem help generate\n  tandem help model synth",
		Annotations: map[string]string{annotationVariables: variablesIgnore},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			of, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []cobra.Completion
			for _, child := range of.Commands() {
				if child.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(child.Name(), child.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError(cmd.Root(), fmt.Sprintf("no command is called %q", strings.Join(args, " ")))
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// invocation is what to type to call a program that was called as program: what
// `tandem up` says to try has to work for those who have no tandem on their PATH.
func invocation(program string) string {
	switch {
	case program == "":
		return "tandem"
	case builtByRun(program):
		return "go run ./cmd/tandem"
	case strings.ContainsAny(program, " \t"):
		return strconv.Quote(program)
	}
	return program
}

// builtByRun reports whether `go run` made the program: in a temporary folder
// /…/go-build…/b001/exe, or in the build cache, in a folder that is named for a
// digest with "-d" behind it.
func builtByRun(program string) bool {
	if !filepath.IsAbs(program) {
		return false
	}
	dir := filepath.Dir(program)
	if digest, found := strings.CutSuffix(filepath.Base(dir), "-d"); found {
		_, err := hex.DecodeString(digest)
		return err == nil && len(digest) == 64
	}
	for _, element := range strings.Split(dir, string(filepath.Separator)) {
		if strings.HasPrefix(element, "go-build") {
			return true
		}
	}
	return false
}
