package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// drainJSON is one line of `drain --json`; the last one has Drained set.
type drainJSON struct {
	Worker    string `json:"worker"`
	Sequences uint32 `json:"sequences"`
	Transfers uint32 `json:"transfers"`
	Drained   bool   `json:"drained"`
}

func newDrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain ID",
		Short: "Let a worker finish what it has and leave",
		Long: `Tells the worker ID to take nothing new, and waits until what it has is done.
Ctrl-C ends the wait, not the drain; 'tandem undrain' takes it back. The last worker
of a role that serves is drained with --force only.`,
		Example: `  tandem drain decode-2f9c
  tandem drain decode-2f9c --grace 30s`,
		Args: exactly("the ID of a worker, see 'tandem workers'"),
	}
	router := addControl(cmd)
	cmd.ValidArgsFunction = completeWorker(router)
	grace := cmd.Flags().Duration("grace", 0, "start what still runs after this long again elsewhere; 0: wait until it is done")
	asJSON := addJSON(cmd, "print one JSON object a line: worker, sequences, transfers, drained")
	force := cmd.Flags().Bool("force", false, "drain it even if no other worker of its role serves")
	onlyOnCommandLine(cmd, "grace", "force")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *grace < 0 {
			return usageError(cmd, fmt.Sprintf("--grace %s is negative", *grace))
		}
		conn, err := router.dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		request := &controlv1.DrainRequest{WorkerId: args[0], Force: *force}
		if *grace > 0 {
			request.Grace = durationpb.New(*grace)
		}
		stream, err := controlv1.NewControlClient(conn).Drain(cmd.Context(), request)
		if err != nil {
			return router.failure(err, false)
		}
		lines, out := json.NewEncoder(cmd.OutOrStdout()), cmd.OutOrStdout()
		for answered := false; ; answered = true {
			progress, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF) && *asJSON:
				return lines.Encode(drainJSON{Worker: args[0], Drained: true})
			case errors.Is(err, io.EOF):
				_, err := fmt.Fprintf(out, "%s is drained\n", args[0])
				return err
			case err != nil:
				return router.failure(err, answered)
			}
			if *asJSON {
				err = lines.Encode(drainJSON{Worker: args[0], Sequences: progress.GetSequences(), Transfers: progress.GetTransfers()})
			} else {
				_, err = fmt.Fprintf(out, "%s: sequences left %d, transfers left %d\n", args[0], progress.GetSequences(), progress.GetTransfers())
			}
			if err != nil {
				return err
			}
		}
	}
	return cmd
}

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
