package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// undrainJSON is what `undrain --json` prints.
type undrainJSON struct {
	Worker  string `json:"worker"`
	Serving bool   `json:"serving"`
}

func newUndrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain ID",
		Short: "Let a worker that drains, or has drained, take requests again",
		Long: `Takes back 'tandem drain ID': the worker takes requests again and says so to the
mesh; what runs there goes on. It works until the worker's process ends, also for one
that has finished what it had and is listed no more, at a router that has seen it drain.`,
		Example: "  tandem undrain decode-2f9c",
		Args:    exactly("the ID of a worker, see 'tandem workers'"),
	}
	router := addControl(cmd)
	cmd.ValidArgsFunction = completeWorker(router)
	asJSON := addJSON(cmd, "print one JSON object: worker, serving")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := ask(router, controlv1.ControlClient.Undrain, &controlv1.UndrainRequest{WorkerId: args[0]}); err != nil {
			return err
		}
		return show(cmd, *asJSON, undrainJSON{Worker: args[0], Serving: true}, func(out io.Writer, u undrainJSON) error {
			_, err := fmt.Fprintf(out, "%s takes requests again\n", u.Worker)
			return err
		})
	}
	return cmd
}
