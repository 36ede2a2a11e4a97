package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// topEvery is how often top looks, and topLeast how often it may at most.
	topEvery = time.Second
	topLeast = 100 * time.Millisecond
	// topTimeout bounds one look, so that a router that hangs is noticed.
	topTimeout = 5 * time.Second
)

// topJSON is one line of `top --json`.
type topJSON struct {
	Pools   []topPoolJSON   `json:"pools"`
	Routers []topRouterJSON `json:"routers"`
	Workers []topWorkerJSON `json:"workers"` // the busiest first
	OldView *oldViewJSON    `json:"old_view,omitempty"`
}

// topPoolJSON is the sum of the workers of a role and a model.
type topPoolJSON struct {
	Pool    string `json:"pool"`
	Model   string `json:"model"`
	Workers int    `json:"workers"`
	Serving int    `json:"serving"` // those that get requests
	// Desired is null until the router has computed it, and for block stores.
	Desired       *uint32 `json:"desired"`
	Running       uint64  `json:"running"`
	Waiting       uint64  `json:"waiting"`
	WaitingTokens uint64  `json:"waiting_tokens"`
	BlocksUsed    uint64  `json:"blocks_used"`
	BlocksTotal   uint64  `json:"blocks_total"`
}

// topRouterJSON is a router's queue for a model, and what requests ask of it.
type topRouterJSON struct {
	Router            string         `json:"router"`
	Model             string         `json:"model"`
	RequestsPerSecond float64        `json:"requests_per_second"`
	PromptTokens      float64        `json:"prompt_tokens"` // of a request, on average
	OutputTokens      float64        `json:"output_tokens"`
	Queue             []topQueueJSON `json:"queue"`
}

// topQueueJSON is the requests of one priority and class that wait for a pool.
type topQueueJSON struct {
	Pool         string `json:"pool"`
	Priority     int32  `json:"priority"`
	Class        string `json:"class"`
	Requests     uint32 `json:"requests"`
	Tokens       uint64 `json:"tokens"`
	OldestWaitMs uint64 `json:"oldest_wait_ms"`
}

// topWorkerJSON is a worker as `workers --json` has it, and how long its steps take.
type topWorkerJSON struct {
	workerJSON
	// StepMs is how long a step that decodes all its sequences takes by its own measure; null:
	// none decode, or it has measured nothing.
	StepMs *float64 `json:"step_ms"`
}

func newTopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show how busy the mesh is: pools, queues and workers, each second",
		Long: `Prints, each second until Ctrl-C, what a router knows of the mesh: the sum of each pool,
what waits at the routers, and the workers, the busiest first. On a terminal the next
view replaces the last one, and has as many workers and columns as fit.

WANTS is how many workers the pool should have for the load ('tandem workers' says why).
BLOCKS USED are those of the KV cache that a new sequence cannot have. STEP MS is how long
a step takes in which all sequences of the worker decode, by its own measure. For each
router, REQUESTS/S come to it, and PROMPT+ANSWER are the tokens of one on average; then
its queues, of which OLDEST is the longest wait. A dash: not known, or none.`,
		Example: `  tandem top
  tandem top --once
  tandem top --json --every 5s`,
		Args: exactly(),
	}
	router := addControl(cmd)
	once := cmd.Flags().Bool("once", false, "print one view and end")
	every := cmd.Flags().Duration("every", topEvery, "how often to look")
	asJSON := addJSON(cmd, "print one JSON object a view, each on a line: pools, routers, workers")
	onlyOnCommandLine(cmd, "once", "every")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *every < topLeast {
			return usageError(cmd, fmt.Sprintf("--every: %v is under %v", *every, topLeast))
		}
		conn, err := router.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		ticker := time.NewTicker(*every)
		defer ticker.Stop()
		out := cmd.OutOrStdout()
		for first := true; ; first = false {
			view, err := topView(cmd.Context(), conn)
			switch {
			case err != nil && cmd.Context().Err() != nil && !*once:
				return nil // Ctrl-C is how it ends.
			case err != nil:
				return router.failure(err, !first)
			case *asJSON:
				err = json.NewEncoder(out).Encode(view)
			default:
				var text bytes.Buffer
				columns, lines := sizeOf(out)
				if *once {
					lines = 0 // all
				} else {
					startAgain(out, first)
				}
				printTop(&text, cmd, view, columns, lines)
				_, err = out.Write(text.Bytes())
			}
			if err != nil || *once {
				return err
			}
			select {
			case <-ticker.C:
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
	return cmd
}

func topView(ctx context.Context, conn *grpc.ClientConn) (topJSON, error) {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	list, err := controlv1.NewControlClient(conn).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
	return topOf(list), err
}

func topOf(list *controlv1.ListWorkersResponse) topJSON {
	top := topJSON{Pools: []topPoolJSON{}, Routers: []topRouterJSON{}, Workers: []topWorkerJSON{}, OldView: oldViewOf(list)}
	pool := func(name, model string) *topPoolJSON {
		i := slices.IndexFunc(top.Pools, func(p topPoolJSON) bool { return p.Pool == name && p.Model == model })
		if i < 0 {
			i = len(top.Pools)
			top.Pools = append(top.Pools, topPoolJSON{Pool: name, Model: model})
		}
		return &top.Pools[i]
	}
	for _, view := range list.GetWorkers() { // sorted by role
		w := topWorkerJSON{workerOf(view), stepMs(view.GetLoad())}
		top.Workers = append(top.Workers, w)
		p := pool(w.Role, w.Model)
		p.Workers++
		if api.Serves(view) {
			p.Serving++
		}
		if l := w.Load; l != nil {
			p.Running += uint64(l.Running)
			p.Waiting += uint64(l.Waiting)
			p.WaitingTokens += l.WaitingTokens
			p.BlocksUsed += uint64(l.BlocksTotal - min(l.BlocksFree, l.BlocksTotal))
			p.BlocksTotal += uint64(l.BlocksTotal)
		}
	}
	for _, size := range list.GetPools() {
		pool(api.Name(size.GetPool()), size.GetModel()).Desired = new(size.GetDesired())
	}
	for _, report := range list.GetQueues() {
		d := report.GetDemand()
		r := topRouterJSON{
			Router: report.GetOrigin().GetId(), Model: report.GetModel(), Queue: []topQueueJSON{},
			RequestsPerSecond: d.GetRequestsPerSecond(), PromptTokens: d.GetContextTokens(), OutputTokens: d.GetOutputTokens(),
		}
		for _, q := range report.GetQueues() {
			r.Queue = append(r.Queue, topQueueJSON{api.Name(q.GetPool()), q.GetPriority(), q.GetClass(), q.GetRequests(), q.GetTokens(), q.GetOldestWaitMs()})
		}
		top.Routers = append(top.Routers, r)
	}
	slices.SortStableFunc(top.Workers, func(a, b topWorkerJSON) int { return slices.Compare(b.busy(), a.busy()) })
	return top
}

// stepMs is how long a step takes in which all sequences of a worker decode; nil: none do, or
// nothing is measured.
func stepMs(load *controlv1.LoadReport) *float64 {
	m, running := load.GetStepTime(), load.GetRunningSequences()
	if m.GetSamples() == 0 || running == 0 {
		return nil
	}
	return new(m.GetBaseMs() + m.GetPerTokenMs()*float64(running) + m.GetPerContextTokenMs()*float64(load.GetRunningContextTokens()))
}

// busy is what workers are sorted by: what waits, what runs, what of the KV cache is used.
func (w topWorkerJSON) busy() []uint64 {
	if w.Load == nil {
		return nil
	}
	l := w.Load
	return []uint64{l.WaitingTokens, uint64(l.Waiting), uint64(l.Running), uint64(l.BlocksTotal - min(l.BlocksFree, l.BlocksTotal))}
}

// The columns that a narrow view does without, the first ones first.
var (
	poolsLeftOut   = [][]string{{"WAITING TOKENS"}, {"MODEL"}}
	routersLeftOut = [][]string{{"WAITING TOKENS"}, {"MODEL"}, {"PRIORITY"}, {"CLASS"}, {"PROMPT+ANSWER"}}
	topLeftOut     = [][]string{{"WAITING TOKENS"}, {"AGE"}, {"STEP MS"}, {"IN FLIGHT"}}
)

// printTop writes a view for a terminal of that size; without lines in as many as it takes.
func printTop(w *bytes.Buffer, cmd *cobra.Command, top topJSON, columns, lines int) {
	if top.OldView != nil {
		fmt.Fprintln(w, asCalled(cmd, "etcd does not answer the router: 'tandem workers' says how old this is"))
	}
	rows := [][]string{{"POOL", "MODEL", "SERVING", "WANTS", "RUNNING", "WAITING", "WAITING TOKENS", "BLOCKS USED"}}
	for _, p := range top.Pools {
		wants := "-"
		if p.Desired != nil {
			wants = fmt.Sprint(*p.Desired)
		}
		rows = append(rows, []string{
			p.Pool, cmp.Or(p.Model, "-"), fmt.Sprintf("%d/%d", p.Serving, p.Workers), wants, fmt.Sprint(p.Running), fmt.Sprint(p.Waiting),
			fmt.Sprint(p.WaitingTokens), usedText(p.BlocksUsed, p.BlocksTotal),
		})
	}
	_ = writeFitted(w, w, rows, poolsLeftOut, columns) // memory takes all
	if len(top.Routers) > 0 {
		fmt.Fprintln(w)
		_ = writeFitted(w, w, routerRows(top.Routers), routersLeftOut, columns)
	}
	fmt.Fprintln(w)
	if len(top.Workers) == 0 {
		fmt.Fprintln(w, asCalled(cmd, noWorkers))
		return
	}
	shown := top.Workers
	// The heading, the line of what is left out, the line of columns that are, and the cursor's.
	if room := max(lines-bytes.Count(w.Bytes(), []byte("\n"))-4, 1); lines > 0 && len(shown) > room {
		shown = shown[:room]
	}
	rows = [][]string{{"ID", "ROLE", "STATE", "RUNNING", "WAITING", "WAITING TOKENS", "BLOCKS USED", "STEP MS", "IN FLIGHT", "AGE"}}
	for _, worker := range shown {
		rows = append(rows, worker.cells())
	}
	_ = writeFitted(w, w, rows, topLeftOut, columns)
	if more := len(top.Workers) - len(shown); more > 0 {
		fmt.Fprintf(w, "and %s, less busy; --once shows all\n", counted(more, "more worker"))
	}
}

// routerRows are a row for each queue of a router, or one for a router where nothing waits.
func routerRows(routers []topRouterJSON) [][]string {
	rows := [][]string{{"ROUTER", "MODEL", "REQUESTS/S", "PROMPT+ANSWER", "QUEUE", "PRIORITY", "CLASS", "WAITING", "WAITING TOKENS", "OLDEST"}}
	for _, r := range routers {
		first := []string{r.Router, cmp.Or(r.Model, "-"), fmt.Sprintf("%.2f", r.RequestsPerSecond), fmt.Sprintf("%.0f+%.0f", r.PromptTokens, r.OutputTokens)}
		if len(r.Queue) == 0 {
			rows = append(rows, append(first, "-", "-", "-", "0", "0", "-"))
		}
		for _, q := range r.Queue {
			oldest := (time.Duration(q.OldestWaitMs) * time.Millisecond).Round(100 * time.Millisecond)
			rows = append(rows, append(slices.Clone(first), cmp.Or(q.Pool, "-"), fmt.Sprint(q.Priority), cmp.Or(q.Class, "-"), fmt.Sprint(q.Requests), fmt.Sprint(q.Tokens), oldest.String()))
			first = slices.Repeat([]string{""}, len(first)) // said once
		}
	}
	return rows
}

func (w topWorkerJSON) cells() []string {
	row := []string{w.ID, w.Role, tableState(w.workerJSON)}
	l := w.Load
	if l == nil {
		return append(row, "-", "-", "-", "-", "-", fmt.Sprint(w.InFlight), "-")
	}
	step := "-"
	if w.StepMs != nil {
		step = strings.TrimSuffix(msText(*w.StepMs), " ms")
	}
	age := time.Duration(l.AgeMs * float64(time.Millisecond)).Round(100 * time.Millisecond)
	return append(row, fmt.Sprint(l.Running), fmt.Sprint(l.Waiting), fmt.Sprint(l.WaitingTokens),
		usedText(uint64(l.BlocksTotal-min(l.BlocksFree, l.BlocksTotal)), uint64(l.BlocksTotal)), step, fmt.Sprint(w.InFlight), age.String())
}

// usedText is a number of blocks and the share that it is.
func usedText(used, total uint64) string {
	if total == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d (%.0f%%)", used, total, 100*float64(used)/float64(total))
}
