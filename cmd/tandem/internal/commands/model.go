package commands

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
)

func newModelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "model",
		Short:   "Inspect models, tokenize text, write synthetic models",
		Example: "  tandem model inspect models/fable\n  tandem model synth --preset bench-200m --out /var/tmp/bench-200m",
	}
	asGroup(cmd)
	cmd.AddCommand(newModelInspectCommand(), newModelTokenizeCommand(), newModelSynthCommand())
	return cmd
}

// modelDir is the directory in args, else the bundled model's.
func modelDir(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	return modeldir.Find("")
}

// terminalProgress shows on a terminal how far long work is; report is nil
// elsewhere, where standard error is for errors. The caller calls finish.
func terminalProgress(stderr io.Writer) (report func(stage string, done, total int64), finish func()) {
	if !isTerminal(stderr) {
		return nil, func() {}
	}
	p := newProgress(stderr)
	return p.report, p.finish
}
