package commands

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// completionTimeout bounds how long a key press may wait for the router.
const completionTimeout = 500 * time.Millisecond

func newCompletionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes commands, flags and worker ids in a shell",
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
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return usageError(cmd, fmt.Sprintf("no completion for %q: pass one of %s", args[0], strings.Join(shells, ", ")))
		},
	}
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
		conn, err := dial(router.address())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(contextOf(cmd)), completionTimeout)
		defer cancel()
		response, err := controlv1.NewControlClient(conn).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
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
