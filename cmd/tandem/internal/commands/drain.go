package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
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
		Short: "Let a worker finish its requests and take no new ones",
		Long: `Tells worker ID to take no new requests, and waits until its requests are done.
Ctrl-C ends the wait, not the drain; 'tandem undrain' undoes the drain, and ends the wait
with an error. The last serving worker of a role is drained only with --force.

While etcd does not answer, only the worker and the router that you ask know of the drain;
the other routers learn of it when etcd is back.`,
		Example: `  tandem drain decode-2f9c
  tandem drain decode-2f9c --grace 30s`,
		Args: exactly("the ID of a worker ('tandem workers' lists them)"),
	}
	router := addControl(cmd)
	cmd.ValidArgsFunction = completeWorker(router)
	grace := cmd.Flags().Duration("grace", 0, "restart requests that still run after this long on other workers; 0: wait until they are done")
	asJSON := addJSON(cmd, "print one JSON object a line: worker, sequences, transfers, drained")
	force := cmd.Flags().Bool("force", false, "drain it even if no other worker of its role serves")
	onlyOnCommandLine(cmd, "grace", "force")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *grace < 0 {
			return usageError(cmd, fmt.Sprintf("--grace %s is negative", *grace))
		}
		conn, err := router.connect()
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
		var last drainJSON
		for answered := false; ; answered = true {
			progress, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF) && *asJSON:
				return lines.Encode(drainJSON{Worker: args[0], Drained: true})
			case errors.Is(err, io.EOF):
				more := " already"
				if answered {
					more = drainHeard(cmd.Context(), conn, args[0])
				}
				text := fmt.Sprintf("%s is drained%s: 'tandem undrain %[1]s' lets %[1]s take requests again", args[0], more)
				_, err := fmt.Fprintln(out, asCalled(cmd, text))
				return err
			case err != nil:
				return router.failure(err, answered)
			}
			now := drainJSON{Worker: args[0], Sequences: progress.GetSequences(), Transfers: progress.GetTransfers()}
			switch {
			case now == last: // it is asked several times a second
			case *asJSON:
				err = lines.Encode(now)
			default:
				_, err = fmt.Fprintf(out, "%s: sequences left %d, transfers left %d\n", args[0], now.Sequences, now.Transfers)
			}
			last = now
			if err != nil {
				return err
			}
		}
	}
	return cmd
}

// listTimeout bounds a look at the list of workers, on which only words depend.
const listTimeout = 2 * time.Second

// drainHeard is what is known of how others hear that a worker is drained: by etcd, if it
// answers the router.
func drainHeard(ctx context.Context, conn *grpc.ClientConn, worker string) string {
	list, err := listWorkers(ctx, conn)
	switch {
	case err != nil:
		return ""
	case list.GetOld():
		return ". Until etcd answers again, other routers do not know, and 'tandem workers' still lists " + worker
	}
	return " and leaves the list of 'tandem workers' soon"
}

func listWorkers(ctx context.Context, conn *grpc.ClientConn) (*controlv1.ListWorkersResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return controlv1.NewControlClient(conn).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
}

// servesAlready reports whether a worker is known to take requests.
func servesAlready(ctx context.Context, conn *grpc.ClientConn, worker string) bool {
	list, err := listWorkers(ctx, conn)
	if err != nil || list.GetOld() {
		return false
	}
	return slices.ContainsFunc(list.GetWorkers(), func(w *controlv1.WorkerView) bool {
		return w.GetRecord().GetId() == worker && w.GetRecord().GetState() == controlv1.WorkerState_WORKER_STATE_SERVING
	})
}

// undrainJSON is what `undrain --json` prints.
type undrainJSON struct {
	Worker  string `json:"worker"`
	Serving bool   `json:"serving"`
}

func newUndrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain ID",
		Short: "Let a draining or drained worker take requests again",
		Long: `Undoes 'tandem drain ID', while the worker drains or after: it takes requests again.
Requests that still run on it are not interrupted.

A drained worker is missing from 'tandem workers', but can be undrained by its ID for as
long as its process runs. If several routers run, pass as --control one that was running
when the worker drained: a router that started later does not know the worker. While etcd
does not answer, only the router that is asked uses the worker again.`,
		Example: "  tandem undrain decode-2f9c",
		Args:    exactly("the ID of a worker ('tandem workers' lists them)"),
	}
	router := addControl(cmd)
	cmd.ValidArgsFunction = completeWorker(router)
	asJSON := addJSON(cmd, "print one JSON object: worker, serving")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		conn, err := router.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		says := "%s takes requests again\n"
		if servesAlready(cmd.Context(), conn, args[0]) {
			says = "%s is not draining: it takes requests already\n"
		}
		if _, err := controlv1.NewControlClient(conn).Undrain(cmd.Context(), &controlv1.UndrainRequest{WorkerId: args[0]}); err != nil {
			return router.failure(err, false)
		}
		return show(cmd, *asJSON, undrainJSON{Worker: args[0], Serving: true}, func(out io.Writer, u undrainJSON) error {
			_, err := fmt.Fprintf(out, says, u.Worker)
			return err
		})
	}
	return cmd
}
