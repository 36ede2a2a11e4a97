package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// workerJSON is one worker in `workers --json`.
type workerJSON struct {
	ID         string   `json:"id"`
	Role       string   `json:"role"`
	State      string   `json:"state"`
	Addresses  []string `json:"addresses"`
	Engine     string   `json:"engine"`
	Model      string   `json:"model"`
	Version    string   `json:"version"`
	Host       string   `json:"host"`
	Epoch      string   `json:"epoch"`
	Connected  bool     `json:"connected"`
	Registered bool     `json:"registered"`
	InFlight   uint32   `json:"in_flight"`
	// Load is null until a report has come.
	Load *loadJSON `json:"load"`
}

// loadJSON is a worker's last load report.
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
		Example: `  tandem workers
  tandem workers --watch --json`,
		Args: exactly(),
	}
	addr := addAddr(cmd)
	role := cmd.Flags().String("role", "", "only workers of this role: prefill, decode or kvtransfer, which is a block store")
	oneOf(cmd, "role", "prefill", "decode", "kvtransfer")
	watch := cmd.Flags().Bool("watch", false, "print them again whenever something changes, until Ctrl-C")
	asJSON := addJSON(cmd, "print one JSON object {\"workers\":[…]}; with --watch one a line")
	onlyOnCommandLine(cmd, "watch", "role")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		request := &controlv1.ListWorkersRequest{}
		if *role != "" {
			switch *role {
			case "prefill":
				request.Role = controlv1.Role_ROLE_PREFILL
			case "decode":
				request.Role = controlv1.Role_ROLE_DECODE
			case "kvtransfer":
				request.Role = controlv1.Role_ROLE_KVTRANSFER
			default:
				return usageError(cmd, fmt.Sprintf("no role of a worker is called %q: pass prefill, decode or kvtransfer", *role))
			}
		}
		conn, err := dial(*addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		client, out := controlv1.NewControlClient(conn), cmd.OutOrStdout()
		if !*watch {
			response, err := client.ListWorkers(cmd.Context(), request)
			if err != nil {
				return routerFailure(err, *addr, false)
			}
			return printWorkers(out, response, *role, *asJSON)
		}
		stream, err := client.WatchWorkers(cmd.Context(), request)
		for first := true; err == nil; first = false {
			response, recvErr := stream.Recv()
			switch {
			case recvErr != nil && cmd.Context().Err() != nil:
				return nil // Ctrl-C is how a watch ends.
			case errors.Is(recvErr, io.EOF):
				return fmt.Errorf("the router at %s ended the watch: it stops; start the command again when it is back", *addr)
			case recvErr != nil:
				return routerFailure(recvErr, *addr, !first)
			}
			if !*asJSON {
				startAgain(out, first)
			}
			err = printWorkers(out, response, *role, *asJSON)
		}
		return routerFailure(err, *addr, false)
	}
	return cmd
}

// startAgain puts the next table over the last one on a terminal, and below it
// elsewhere.
func startAgain(w io.Writer, first bool) {
	switch {
	case isTerminal(w):
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	case !first:
		fmt.Fprintln(w)
	}
}

// isTerminal reports whether a stream is a terminal, or at least no file or pipe.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// printWorkers prints the workers, of one role unless that is empty.
func printWorkers(w io.Writer, response *controlv1.ListWorkersResponse, role string, asJSON bool) error {
	if asJSON {
		list := struct {
			Workers []workerJSON `json:"workers"`
		}{Workers: []workerJSON{}}
		for _, view := range response.GetWorkers() {
			list.Workers = append(list.Workers, workerOf(view))
		}
		return json.NewEncoder(w).Encode(list)
	}
	if len(response.GetWorkers()) == 0 && role != "" {
		_, err := fmt.Fprintf(w, "no %s workers: start some with 'tandem serve --target %s'\n", role, role)
		return err
	}
	if len(response.GetWorkers()) == 0 {
		_, err := fmt.Fprintln(w, "no workers: start some with 'tandem serve --target prefill' and '--target decode'")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tROLE\tSTATE\tADDRESS\tENGINE\tMODEL\tRUNNING\tWAITING\tBLOCKS FREE\tIN FLIGHT\tREPORT AGE")
	for _, view := range response.GetWorkers() {
		worker := workerOf(view)
		running, waiting, blocks, age := "-", "-", "-", "never"
		if l := worker.Load; l != nil {
			running, waiting = fmt.Sprint(l.Running), fmt.Sprint(l.Waiting)
			blocks = fmt.Sprintf("%d/%d", l.BlocksFree, l.BlocksTotal)
			age = view.GetLoadAge().AsDuration().Round(100 * time.Millisecond).String()
		}
		address := "-"
		if len(worker.Addresses) > 0 {
			address = worker.Addresses[0]
		}
		fmt.Fprintln(table, strings.Join([]string{
			worker.ID, worker.Role, tableState(worker), address, orElse(worker.Engine, "-"), orElse(worker.Model, "-"),
			running, waiting, blocks, fmt.Sprint(worker.InFlight), age,
		}, "\t"))
	}
	return table.Flush()
}

// tableState is the state with what is wrong beside it.
func tableState(w workerJSON) string {
	switch {
	case !w.Connected:
		return w.State + ", no connection"
	case !w.Registered:
		return w.State + ", not in etcd"
	}
	return w.State
}

func workerOf(view *controlv1.WorkerView) workerJSON {
	record := view.GetRecord()
	worker := workerJSON{
		ID:         record.GetId(),
		Role:       roleName(record.GetRole()),
		State:      stateName(record.GetState()),
		Addresses:  append([]string{}, record.GetAddresses()...),
		Engine:     record.GetEngine(),
		Model:      record.GetModel(),
		Version:    record.GetVersion(),
		Host:       record.GetHost(),
		Epoch:      fmt.Sprintf("%016x", record.GetEpoch()),
		Connected:  view.GetConnected(),
		Registered: view.GetRegistered(),
		InFlight:   view.GetInFlight(),
	}
	if load := view.GetLoad(); load != nil {
		worker.Load = &loadJSON{
			AgeMs:             float64(view.GetLoadAge().AsDuration()) / float64(time.Millisecond),
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

// roleName and stateName are the enums' names as people write them.
func roleName(r controlv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

func stateName(s controlv1.WorkerState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "WORKER_STATE_"))
}
