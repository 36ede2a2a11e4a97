package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newHelpCommand replaces cobra's, whose exit status is 0 for a command that does
// not exist.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help of a command",
		Example: "  tandem help generate\n  tandem help model synth",
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
