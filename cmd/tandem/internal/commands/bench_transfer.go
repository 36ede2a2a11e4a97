package commands

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/transfer"
	"github.com/tandem-serving/tandem/pkg/bytesize"
)

func newBenchTransferCommand() *cobra.Command {
	plan := transfer.Plan{}
	bytes := bytesize.Size(2 << 30)
	cmd := &cobra.Command{
		Use:   "transfer",
		Short: "Measure the KV transfer beside plain copies over the same connections",
		Long: `Moves KV pages of a model from a sender to a receiver in this process, over real
sockets and with every check on. In turns it makes plain copies of as many bytes, from
and to the same pages, so that both are measured in the same run.

  rate         payload bytes per second, compared with the best plain TCP copy; with
               --transport shm also with the best plain copy in memory, by one core
  unix         the same over a Unix socket, compared with TCP
  tls          the same over TCP with TLS, compared with what TCP and AES allow
  allocations  objects that Tandem's own code allocates for each chunk
  behind       time of a one-block transfer behind large ones, compared with one alone
  exposed      part of a transfer that a prefill of twice its time does not hide
  kill         how long blocks are held after one side was killed

If the plain copies differ too much, the result says "valid": false, and why. With
none of rate, unix and tls there are no plain copies, and the result has no "valid".`,
		Example: `  tandem bench transfer
  tandem bench transfer --bytes 2GiB --transport unix --connections 2 --json
  tandem bench transfer --transport shm --only rate,exposed
  tandem bench transfer --only rate,unix --preset bench-8b --rounds 9`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.Var(&bytes, "bytes", "payload of one round of rate or unix, such as 2GiB")
	fs.StringVar(&plan.Transport, "transport", transfer.TCP, "transport: tcp, unix or shm (the receiver's pages as shared memory)")
	fs.IntVar(&plan.Connections, "connections", 1, "connections between sender and receiver, 1 to 8")
	fs.StringVar(&plan.Preset, "preset", "bench-200m", "shape of the model whose KV moves: bench-200m, bench-1b or bench-8b")
	fs.IntVar(&plan.BlockTokens, "block-tokens", 32, "tokens in a KV block")
	fs.IntVar(&plan.PromptTokens, "prompt", 2048, "tokens in a prompt; one transfer moves its KV")
	fs.IntVar(&plan.Rounds, "rounds", 5, "times to measure each rate, in turns")
	fs.IntVar(&plan.Samples, "samples", 30, "times to measure each other figure")
	fs.IntVar(&plan.Large, "large", 100, "for 'behind': number of large transfers ahead of the small one")
	fs.DurationVar(&plan.Lease, "lease", 10*time.Second, "for 'kill': how long a receiver holds blocks for a silent sender")
	fs.StringSliceVar(&plan.Only, "only", nil, "figures to measure, such as rate,exposed (default: all)")
	oneOf(cmd, "transport", transfer.TCP, transfer.Unix, transfer.Shm)
	oneOf(cmd, "preset", "bench-200m", "bench-1b", "bench-8b")
	oneOf(cmd, "only", transfer.Figures()...)
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		plan.Bytes = int64(bytes)
		if err := plan.Validate(); err != nil {
			return usageError(cmd, err.Error())
		}
		binary, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the program to start: %w", err)
		}
		child := func(p transfer.Plan, side string) []string {
			return []string{"bench", "transfer", "part", side, planArgument(p)}
		}
		defer deferCollector()()
		bench, err := transfer.New(plan, transfer.Child{Binary: binary, Arguments: child}, progressLines(cmd, *asJSON))
		if err != nil {
			return err
		}
		result, err := bench.Measure(cmd.Context())
		if closeErr := bench.Close(); err == nil {
			err = closeErr
		}
		return measured(cmd, *asJSON, result, err, printTransfer)
	}
	cmd.AddCommand(newBenchTransferPart())
	return cmd
}

// newBenchTransferPart is one side, in a process that is to be killed.
func newBenchTransferPart() *cobra.Command {
	return &cobra.Command{
		Use: "part SIDE PLAN", Short: "Run the side of 'bench transfer' that is killed", Hidden: true,
		Args: exactly("the SIDE", "the PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := parsePlan[transfer.Plan]("bench transfer", args[1])
			if err != nil {
				return err
			}
			return transfer.ServeChild(cmd.Context(), p, args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
		Example: "  tandem bench transfer --only kill",
	}
}

func printTransfer(w io.Writer, r *transfer.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s, %s of %d bytes a slice, %s, over %s, CRC-32C on every chunk\n", r.Preset, counted(r.Layers, "layer"), r.SliceBytes, counted(r.Connections, "connection"), r.Transport)
	if r.BarrierNs > 0 {
		fmt.Fprintf(t, "a barrier of two threads takes %.0f ns: %s\n", r.BarrierNs, r.Machine())
	}
	if len(r.Rates) > 0 {
		fmt.Fprintln(t, "\nGB/s\tbest\tmedian\tspread\tCPU ns/B")
	}
	for _, rate := range r.Rates {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.0f%%\t%.3f\n", rate.Name, rate.GBytesPerS, rate.Median, 100*rate.Spread, rate.CPUNsPerByte)
	}
	fmt.Fprintln(t, "\nfigure\t\t")
	row := func(shown bool, name, format string, args ...any) {
		if shown {
			fmt.Fprintf(t, "%s\t%s\t\n", name, fmt.Sprintf(format, args...))
		}
	}
	row(r.Ratio > 0, "share of plain TCP", "%.2f (median of the rounds %.2f)", r.Ratio, r.RatioMedian)
	row(r.CPUOverRaw > 0, "CPU time, relative to a plain copy", "%.2f", r.CPUOverRaw)
	row(r.UnixOverTCP > 0, "unix, relative to tcp", "%.2f (relative to a plain copy over unix %.2f)", r.UnixOverTCP, r.UnixRatio)
	row(r.ShmRatio > 0, "shm, relative to a plain copy in memory", "%.2f (relative to tcp %.2f)", r.ShmRatio, r.ShmOverTCP)
	row(r.TLS > 0, "tls, of 1/(1/tcp + 1/AES)", "%.2f (%.2f GB/s; AES %.2f)", r.TLSOfAllowed, r.TLS, r.AES)
	row(r.TLS > 0, "the same, middle round", "%.2f", r.TLSOfAllowedMedian)
	row(r.TLSCPUOfAllowed > 0, "the same, by processor time", "%.2f", r.TLSCPUOfAllowed)
	if a := r.Allocations; a != nil {
		row(true, "allocations a chunk", "%.3f in Tandem's code, %.2f in all (%d chunks)", a.PerChunk, a.AllPerChunk, a.Chunks)
		for _, site := range a.Sites {
			row(true, "", "%.2f %s", site.PerChunk, site.Function)
		}
	}
	if b := r.Behind; b != nil {
		row(true, "one block behind large ones", "%.2f times as long: %.3f ms (p90 %.3f, worst %.3f), alone %.3f (p90 %.3f)", b.Ratio, b.BehindMs, b.BehindP90Ms, b.WorstMs, b.AloneMs, b.AloneP90Ms)
	}
	if e := r.Exposed; e != nil {
		row(true, "exposed transfer", "%.3f: %.3f ms (p90 %.3f) of %.3f (p90 %.3f), prefill %.1f ms, %d bytes copied after it", e.Ratio, e.ExposedMs, e.ExposedP90Ms, e.AfterMs, e.AfterP90Ms, e.PrefillMs, e.CopiedBytes)
	}
	for _, k := range r.Kills {
		row(true, k.Side+" killed, "+k.Phase, "blocks free after %.4f s", k.FreeS)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Valid != nil && !*r.Valid {
		fmt.Fprintf(w, "\nnot valid: %s\n", r.Reason)
	}
	return nil
}
