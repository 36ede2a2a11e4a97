package commands

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/api"
)

// completionTimeout bounds how long a key press may wait for the router.
const completionTimeout = 500 * time.Millisecond

func newCompletionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes commands, flags and worker ids in a shell",
		Long: `Prints a script that completes the commands, flags and worker ids of tandem in your
shell. The script calls tandem, so a tandem binary must be on the PATH; 'go run' does
not work.

Load these before the script. It says so if one is missing:

  bash        the package bash-completion, in bash 4.2 or later
  zsh         compinit ('autoload -Uz compinit; compinit')
  fish        nothing
  PowerShell  nothing`,
		Example: `  source <(tandem completion bash)
  tandem completion zsh > "${fpath[1]}/_tandem"
  tandem completion fish > ~/.config/fish/completions/tandem.fish`,
		Args:                  exactly("the name of a shell: " + strings.Join(shells, ", ")),
		ValidArgs:             shells,
		Annotations:           map[string]string{annotationVariables: variablesIgnore},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				_, _ = io.WriteString(out, bashNeeds) // the script behind it fails to be written then
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return zshCompletion(root, out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return usageError(cmd, fmt.Sprintf("no completion for %q: pass one of %s", args[0], strings.Join(shells, ", ")))
		},
	}
}

// bashNeeds and zshNeeds say what a script lacks, when it is loaded, in place of an error
// at each key press.
const (
	bashNeeds = `if [[ -z $(declare -F _init_completion _comp_initialize _get_comp_words_by_ref) ]]; then
    echo "tandem: completion needs the package bash-completion: install it, and load it before this script" >&2
fi
if ! type -P tandem >/dev/null; then
    echo "tandem: completion calls tandem, which is not on the PATH" >&2
fi
`
	zshNeeds = `if ! (( $+functions[compdef] )); then
    print -u2 "tandem: completion needs compinit: run 'autoload -Uz compinit; compinit' before this script"
    return 1
fi
if ! (( $+commands[tandem] )); then
    print -u2 "tandem: completion calls tandem, which is not on the PATH"
fi
`
)

// zshCompletion writes the script for zsh. Its first line has to be cobra's, by which
// zsh knows a file of completions.
func zshCompletion(root *cobra.Command, out io.Writer) error {
	var script strings.Builder
	if err := root.GenZshCompletion(&script); err != nil {
		return err
	}
	first, rest, _ := strings.Cut(script.String(), "\n")
	_, err := io.WriteString(out, first+"\n"+zshNeeds+rest)
	return err
}

func oneOf(cmd *cobra.Command, flag string, choices ...string) {
	// The flag exists, as the caller has just made it.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// completeWorker completes the id of a worker that the router knows.
func completeWorker(router *operator) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		as, err := router.open(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		conn, err := dial(router.control, as)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(contextOf(cmd)), completionTimeout)
		defer cancel()
		response, err := listWorkers(ctx, conn)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var ids []cobra.Completion
		for _, worker := range response.GetWorkers() {
			record := worker.GetRecord()
			ids = append(ids, cobra.CompletionWithDesc(record.GetId(), api.Name(record.GetRole())+", "+api.Name(record.GetState())))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// contextOf is the command's context, which cobra leaves nil while it completes.
func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
