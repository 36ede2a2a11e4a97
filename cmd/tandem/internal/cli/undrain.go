package cli

import (
	"encoding/json"
	"fmt"

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
		conn, err := router.dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := controlv1.NewControlClient(conn).Undrain(cmd.Context(), &controlv1.UndrainRequest{WorkerId: args[0]}); err != nil {
			return router.failure(err, false)
		}
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(undrainJSON{Worker: args[0], Serving: true})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s takes requests again\n", args[0])
		return err
	}
	return cmd
}
