package commands

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// annotationGroup marks a command that does nothing by itself.
const annotationGroup = "tandem_group"

func isGroup(cmd *cobra.Command) bool { return cmd.Annotations[annotationGroup] != "" }

// asGroup makes of a command one that only holds others: without arguments it
// prints its help; an unknown one is an error that names the nearest.
func asGroup(cmd *cobra.Command) {
	annotate(cmd, annotationVariables, variablesIgnore)
	annotate(cmd, annotationGroup, "true")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func unknownCommand(group *cobra.Command, name string) error {
	problem := fmt.Sprintf("%s has no command %q", group.CommandPath(), name)
	if meant := elsewhere[name]; meant != "" && !group.HasParent() {
		problem += fmt.Sprintf(", did you mean %q?", meant)
	} else if why := otherwise[name]; why != "" && !group.HasParent() {
		problem += ": " + why
	} else if nearest, near := spelling.Nearest(name, commandNames(group)); near {
		problem += fmt.Sprintf(", did you mean %q?", nearest)
	}
	return usageError(group, problem)
}

// elsewhere are our commands by what other programs call theirs.
var elsewhere = map[string]string{
	"start": "up", "run": "up", "launch": "up",
	"complete": "generate", "ask": "generate",
	"status": "workers", "ps": "workers", "list": "workers", "ls": "workers",
	"router": "serve --target=router", "prefill": "serve --target=prefill", "decode": "serve --target=decode", "kvtransfer": "serve --target=kvtransfer",
}

// otherwise is how to do what other programs have commands for.
var otherwise = map[string]string{
	"stop": "press Ctrl-C where 'tandem up' or 'tandem serve' runs", "down": "press Ctrl-C where 'tandem up' or 'tandem serve' runs",
	"logs": "'tandem up' and 'tandem serve' log to standard error",
}

// flagsElsewhere are our flags by what other programs call theirs.
var flagsElsewhere = map[string]string{
	"port": "listen or --http", "host": "listen or --http", "v": "version", "V": "version",
}

func commandNames(group *cobra.Command) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, child := range group.Commands() {
			if child.IsAvailableCommand() && !yield(child.Name()) {
				return
			}
		}
	}
}

// flagFailure is the error of reading a command's flags. cobra reads those of a group
// before it finds that the group has no such command: the flags are that one's, and it
// is the command that is wrong.
func flagFailure(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return pflag.ErrHelp
	}
	unknown, is := errors.AsType[*pflag.NotExistError](err)
	if !is {
		return usageError(cmd, flagProblem(err))
	}
	if name, found := firstArgument(cmd); found && isGroup(cmd) {
		return unknownCommand(cmd, name)
	}
	return usageError(cmd, unknownFlag(cmd, unknown.GetSpecifiedName()))
}

// firstArgument is the argument behind the name of a command, unless it is a flag.
func firstArgument(cmd *cobra.Command) (string, bool) {
	args := processOf(cmd.Context()).Args
	var path []string
	for of := cmd; of.HasParent(); of = of.Parent() {
		path = append(path, of.Name())
	}
	for _, name := range slices.Backward(path) {
		at := slices.Index(args, name)
		if at < 0 {
			return "", false
		}
		args = args[at+1:]
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return "", false
	}
	return args[0], true
}

func unknownFlag(cmd *cobra.Command, name string) string {
	dashes := "--"
	if args := processOf(cmd.Context()).Args; len(name) == 1 && !slices.ContainsFunc(args, func(a string) bool { return a == "--"+name || strings.HasPrefix(a, "--"+name+"=") }) {
		dashes = "-"
	}
	problem := fmt.Sprintf("%s has no flag %s%s", cmd.CommandPath(), dashes, name)
	if first, _, _ := strings.Cut(flagsElsewhere[name], " "); first != "" && cmd.Flags().Lookup(first) != nil {
		return problem + fmt.Sprintf(", did you mean --%s?", flagsElsewhere[name])
	}
	if len(name) == 1 {
		return problem
	}
	if other := flagOfSibling(cmd, name); other != nil {
		return problem + fmt.Sprintf(": '%s' has it", other.CommandPath())
	}
	if nearest, near := spelling.Nearest(name, flagNames(cmd)); near {
		return problem + fmt.Sprintf(", did you mean --%s?", nearest)
	}
	return problem
}

// flagOfSibling is 'up' for a flag that 'serve' lacks, or the other way round; nil: it is
// neither's.
func flagOfSibling(cmd *cobra.Command, name string) *cobra.Command {
	if other := siblingOf(cmd.Root(), cmd.Name()); other != nil && other.Flags().Lookup(name) != nil {
		return other
	}
	return nil
}

// siblingOf is 'up' for the name of 'serve', or the other way round; nil: the name is neither's.
func siblingOf(root *cobra.Command, name string) *cobra.Command {
	other := map[string]string{"serve": "up", "up": "serve"}[name]
	for _, c := range root.Commands() {
		if c.Name() == other {
			return c
		}
	}
	return nil
}

// fileFailure is the error of reading a configuration file for the command called name. A
// key that only the sibling of that command has is said to be the sibling's.
func fileFailure(root *cobra.Command, name string, err error) error {
	unknown, is := errors.AsType[*settings.UnknownKey](err)
	if !is {
		return err
	}
	other := siblingOf(root, name)
	if other == nil || !settings.HasKey(other.Flags(), unknown.Key) {
		return err
	}
	return errors.New(unknown.Because(fmt.Sprintf("it is a setting of '%s'", other.CommandPath())))
}

func flagNames(cmd *cobra.Command) iter.Seq[string] {
	return func(yield func(string) bool) {
		more := true
		cmd.Flags().VisitAll(func(f *pflag.Flag) { more = more && (f.Hidden || yield(f.Name)) })
	}
}
