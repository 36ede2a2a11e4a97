package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// workerJSON is one worker in `workers --json`.
type workerJSON struct {
	ID        string   `json:"id"`
	Role      string   `json:"role"`
	State     string   `json:"state"`
	Addresses []string `json:"addresses"`
	Engine    string   `json:"engine"`
	Model     string   `json:"model"`
	// ModelDigest and ArithmeticClass are its version of the model.
	ModelDigest     string `json:"model_digest"`
	ArithmeticClass string `json:"arithmetic_class"`
	Version         string `json:"version"`
	Host            string `json:"host"`
	Epoch           string `json:"epoch"`
	Connected       bool   `json:"connected"`
	Registered      bool   `json:"registered"`
	InFlight        uint32 `json:"in_flight"`
	// Excluded says why it gets no requests, whatever its load; empty: it does.
	Excluded string `json:"excluded"`
	// Load is null until a report has come.
	Load *loadJSON `json:"load"`
}

// poolJSON is how many workers a pool has and should have, and why.
type poolJSON struct {
	Pool    string `json:"pool"`
	Model   string `json:"model"`
	Workers uint32 `json:"workers"`
	Desired uint32 `json:"desired"`
	Reason  string `json:"reason"`
}

type oldViewJSON struct {
	// AgeMs is how long ago etcd last answered; null: it never has.
	AgeMs *float64 `json:"age_ms"`
	// Source is empty for what the router saw itself, else file or peer.
	Source string `json:"source"`
}

type loadJSON struct {
	AgeMs             float64 `json:"age_ms"`
	Running           uint32  `json:"running"`
	Waiting           uint32  `json:"waiting"`
	WaitingTokens     uint64  `json:"waiting_tokens"`
	BlocksFree        uint32  `json:"blocks_free"`
	BlocksReserved    uint32  `json:"blocks_reserved"`
	BlocksQuarantined uint32  `json:"blocks_quarantined"`
	BlocksTotal       uint32  `json:"blocks_total"`
}

func newWorkersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers as the router sees them, and how busy they are",
		Long: `Prints a line for each worker. DIGEST is the beginning of its model's digest. RUNNING,
WAITING and BLOCKS FREE come from its last load report, and AGE is the age of that report;
they are dashes until the first one comes. IN FLIGHT counts the requests of this router
that run on it.

Of a table wider than the terminal, or elsewhere than 120 columns, it leaves columns out and
says which. --json has them all, and also the worker's engine, arithmetic class, addresses,
version and host.

Lines below the table say how many workers each pool should have for the load, and why.`,
		Example: `  tandem workers
  tandem workers --watch --json`,
		Args: exactly(),
	}
	router := addControl(cmd)
	role := cmd.Flags().String("role", "", "list only workers of this role: prefill, decode or kvtransfer (a block store)")
	oneOf(cmd, "role", "prefill", "decode", "kvtransfer")
	watch := cmd.Flags().Bool("watch", false, "print the list again on every change, until Ctrl-C")
	asJSON := addJSON(cmd, "print one JSON object {\"workers\":[…]}; with --watch, one on each line")
	onlyOnCommandLine(cmd, "watch", "role")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		request := &controlv1.ListWorkersRequest{}
		if *role != "" {
			var is bool
			if request.Role, is = api.Parse[controlv1.Role](*role); !is || request.Role == controlv1.Role_ROLE_ROUTER {
				return usageError(cmd, fmt.Sprintf("--role: %q is not a role of a worker: pass prefill, decode or kvtransfer", *role))
			}
		}
		out := cmd.OutOrStdout()
		if !*watch {
			response, err := ask(router, controlv1.NewControlClient, controlv1.ControlClient.ListWorkers, request)
			if err != nil {
				return err
			}
			return printWorkers(cmd, response, *role, *asJSON)
		}
		conn, err := router.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := controlv1.NewControlClient(conn).WatchWorkers(cmd.Context(), request)
		for first := true; err == nil; first = false {
			response, recvErr := stream.Recv()
			switch {
			case recvErr != nil && cmd.Context().Err() != nil:
				return nil // Ctrl-C is how a watch ends.
			case errors.Is(recvErr, io.EOF):
				return fmt.Errorf("the router at %s is stopping and ended the watch: start the command again when the router is back", router.control)
			case recvErr != nil:
				return router.failure(recvErr, !first)
			}
			if !*asJSON {
				startAgain(out, first)
			}
			err = printWorkers(cmd, response, *role, *asJSON)
		}
		return router.failure(err, false)
	}
	return cmd
}

// startAgain puts the next table over the last one on a terminal, and below it
// elsewhere.
func startAgain(w io.Writer, first bool) {
	switch {
	case writesOver(w):
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	case !first:
		fmt.Fprintln(w)
	}
}

const noWorkers = "no workers: start some with 'tandem serve --target=prefill' and 'tandem serve --target=decode'"

// printWorkers prints the workers, of one role unless that is empty.
func printWorkers(cmd *cobra.Command, response *controlv1.ListWorkersResponse, role string, asJSON bool) error {
	w := cmd.OutOrStdout()
	if asJSON {
		list := struct {
			Workers []workerJSON `json:"workers"`
			// OldView is there if etcd does not answer the router.
			OldView *oldViewJSON `json:"old_view,omitempty"`
			// Pools are there once the router has computed their sizes.
			Pools []poolJSON `json:"pools,omitempty"`
		}{Workers: []workerJSON{}, OldView: oldViewOf(response), Pools: poolsOf(response.GetPools())}
		for _, view := range response.GetWorkers() {
			list.Workers = append(list.Workers, workerOf(view))
		}
		return json.NewEncoder(w).Encode(list)
	}
	if response.GetOld() {
		if _, err := fmt.Fprintln(w, oldView(response)); err != nil {
			return err
		}
	}
	if len(response.GetWorkers()) == 0 {
		text := noWorkers
		if role != "" {
			text = fmt.Sprintf("no %s workers: start some with 'tandem serve --target=%[1]s'", role)
		}
		_, err := fmt.Fprintln(w, asCalled(cmd, text))
		return err
	}
	if err := writeWorkersTable(w, cmd.ErrOrStderr(), response.GetWorkers()); err != nil {
		return err
	}
	said := 0
	for _, view := range response.GetWorkers() {
		why := view.GetExcluded()
		if why == "" {
			continue
		}
		if said++; said > maxReasons {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s gets no requests: %s\n", view.GetRecord().GetId(), why); err != nil {
			return err
		}
	}
	if said > maxReasons {
		if _, err := fmt.Fprintf(w, "no requests for %s either: --json says why\n", counted(said-maxReasons, "other worker")); err != nil {
			return err
		}
	}
	return writePools(w, response.GetPools())
}

// writePools says how many workers each pool should have.
func writePools(w io.Writer, pools []*controlv1.PoolSize) error {
	for _, p := range pools {
		if _, err := fmt.Fprintf(w, "%s has %d and wants %d: %s\n", api.Name(p.GetPool()), p.GetWorkers(), p.GetDesired(), p.GetReason()); err != nil {
			return err
		}
	}
	return nil
}

// poolsOf is writePools for programs.
func poolsOf(pools []*controlv1.PoolSize) (out []poolJSON) {
	for _, p := range pools {
		out = append(out, poolJSON{Pool: api.Name(p.GetPool()), Model: p.GetModel(), Workers: p.GetWorkers(), Desired: p.GetDesired(), Reason: p.GetReason()})
	}
	return out
}

// maxReasons is how many workers are said under the table to get no requests, and why.
const maxReasons = 20

// oldViewOf is what there is to say of a list's age; nil: nothing.
func oldViewOf(response *controlv1.ListWorkersResponse) *oldViewJSON {
	if !response.GetOld() {
		return nil
	}
	old := &oldViewJSON{Source: response.GetSource()}
	if age := response.GetAge(); age != nil {
		old.AgeMs = new(milliseconds(age.AsDuration()))
	}
	return old
}

func oldView(response *controlv1.ListWorkersResponse) string {
	if response.GetAge() == nil {
		return "etcd has not answered this router yet"
	}
	age := response.GetAge().AsDuration().Round(time.Second)
	switch response.GetSource() {
	case "file":
		return fmt.Sprintf("etcd does not answer: this list is %s old and comes from this router's own copy", age)
	case "peer":
		return fmt.Sprintf("etcd does not answer: this list is %s old and comes from another router", age)
	}
	return fmt.Sprintf("etcd has not answered for %s: workers may have come and gone since", age)
}

func workerOf(view *controlv1.WorkerView) workerJSON {
	record := view.GetRecord()
	worker := workerJSON{
		ID:              record.GetId(),
		Role:            api.Name(record.GetRole()),
		State:           api.Name(record.GetState()),
		Addresses:       append([]string{}, record.GetAddresses()...),
		Engine:          record.GetEngine(),
		Model:           record.GetModel(),
		ModelDigest:     record.GetModelDigest(),
		ArithmeticClass: record.GetLayout().GetArithmeticClass(),
		Version:         record.GetVersion(),
		Host:            record.GetHost(),
		Epoch:           fmt.Sprintf("%016x", record.GetEpoch()),
		Connected:       view.GetConnected(),
		Registered:      view.GetRegistered(),
		InFlight:        view.GetInFlight(),
		Excluded:        view.GetExcluded(),
	}
	if load := view.GetLoad(); load != nil {
		worker.Load = &loadJSON{
			AgeMs:             milliseconds(view.GetLoadAge().AsDuration()),
			Running:           load.GetRunningSequences(),
			Waiting:           load.GetWaitingSequences(),
			WaitingTokens:     load.GetWaitingTokens(),
			BlocksFree:        load.GetBlocksFree(),
			BlocksReserved:    load.GetBlocksReserved(),
			BlocksQuarantined: load.GetBlocksQuarantined(),
			BlocksTotal:       load.GetBlocksTotal(),
		}
	}
	return worker
}
