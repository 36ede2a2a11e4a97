package commands

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/router"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

func newBenchRouterCommand() *cobra.Command {
	var plan router.Plan
	var dir string
	var arguments []string
	cmd := &cobra.Command{
		Use:   "router",
		Short: "Measure the router: its decisions, the tokens that it relays, and the delay it adds",
		Long: `Times decisions of the routing core among simulated workers, for prompts of 2048 tokens.

Then it starts a router in a process of its own. The workers compute nothing: they run in
this process, as do the clients, so that one clock times each token from a worker to its
client. Every stream has a connection of its own, unless --connections says how many share
them, and every token is a message.

tokens_per_cpu_s are the tokens that clients got, by the CPU time of the router alone. The
added times include the network of this machine: client, router, worker and back. If the
streams do not keep their pace, the result says "valid": false, and why.`,
		Example: `  tandem bench router
  tandem bench router --workers 64 --streams 1000 --prefix-blocks 100000 --json
  tandem bench router --streams 1000 --openai`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.IntVar(&plan.Workers, "workers", 32, "simulated workers, half for prefill and half for decode")
	fs.IntVar(&plan.Streams, "streams", 1000, "streams at a time")
	fs.IntVar(&plan.Connections, "connections", 0, "connections that streams of gRPC share (default: each has its own)")
	fs.IntVar(&plan.PrefixBlocks, "prefix-blocks", 100_000, "KV blocks in the router's prefix index, spread over the workers")
	fs.BoolVar(&plan.OpenAI, "openai", false, "read the streams over OpenAI's HTTP API instead of gRPC")
	fs.BoolVar(&plan.TLS, "tls", false, "encrypt the connections to and from the router, with certificates on both sides of those to workers")
	fs.BoolVar(&plan.Auth, "auth", false, "ask clients for an API key, whose tenant has limits; it needs --tls")
	fs.BoolVar(&plan.ClientProbes, "client-probes", false, "have clients of gRPC send a ping for each message, as Go's do by default; the router answers each")
	fs.IntVar(&plan.Tokens, "tokens", 512, "tokens in each answer")
	fs.IntVar(&plan.PromptTokens, "prompt", 64, "tokens in the prompt of each stream")
	fs.DurationVar(&plan.Gap, "itl", 50*time.Millisecond, "time between tokens of a stream at the workers")
	fs.DurationVar(&plan.Duration, "duration", 10*time.Second, "how long to measure, once all streams have begun")
	fs.IntVar(&plan.Decisions, "decisions", 20_000, "decisions to time")
	fs.StringVar(&dir, "model", "", "directory of the model, for its tokenizer (default: the bundled one)")
	fs.StringArrayVar(&arguments, "router-flag", nil, "extra flag for the router, such as --router-flag=--log-level=info")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := plan.Validate(); err != nil {
			return usageError(cmd, err.Error())
		}
		found, err := modeldir.Find(dir)
		if err != nil {
			return err
		}
		spec, err := model.LoadSpec(found, model.Options{})
		if err != nil {
			return err
		}
		if err := plan.FitsContext(spec.Name, spec.ContextTokens); err != nil {
			return usageError(cmd, err.Error())
		}
		words, err := tokenizer.Open(found)
		if err != nil {
			return err
		}
		plan.Mesh = processes.Plan{Arguments: append([]string{"--model", found}, arguments...), StartTimeout: meshStartTimeout}
		defer deferCollector()()
		result, err := router.Measure(cmd.Context(), plan, spec, words, progressLines(cmd, *asJSON))
		return measured(cmd, *asJSON, result, err, printRouter)
	}
	return cmd
}

func printRouter(w io.Writer, r *router.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s, %s over %s of %s, %s\n", counted(r.Workers, "worker"), counted(r.Streams, "stream"), counted(r.Connections, "connection"), r.API, counted(r.PrefixBlocks, "prefix block"))
	fmt.Fprintln(t, "\tp50\tp99\t")
	fmt.Fprintf(t, "decision, us\t%.1f\t%.1f\t\n", r.DecisionUsP50, r.DecisionUsP99)
	fmt.Fprintf(t, "added to the first token, ms\t%.2f\t%.2f\t\n", r.AddedTTFTMsP50, r.AddedTTFTMsP99)
	fmt.Fprintf(t, "added to other tokens, us\t%.0f\t%.0f\t\n", r.AddedTokenUsP50, r.AddedTokenUsP99)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%.0f ms to take in the prefix caches of all workers, %.0f us the longest part\n", r.IndexMs, r.IndexUsMax)
	fmt.Fprintf(w, "%.0f decisions a second, and %.1f us to hash a prompt before each\n", r.DecisionsPerS, r.HashUsP50)
	fmt.Fprintf(w, "%.0f tokens a second, %.0f for each second of the router's CPU time, %.1f allocations each\n", r.TokensPerS, r.TokensPerCPUS, r.AllocationsPerToken)
	fmt.Fprintf(w, "%.2f ms of the router's CPU time for a request of %s\n", r.CPUMsPerRequest, counted(r.Tokens, "token"))
	fmt.Fprintf(w, "the router used %.2f cores and %.0f MB, workers and clients %.2f cores\n", r.RouterCPUs, r.RSSMBytes, r.ClientCPUs)
	if !r.Valid {
		fmt.Fprintf(w, "\nnot valid: %s\n", r.Reason)
	}
	return nil
}
