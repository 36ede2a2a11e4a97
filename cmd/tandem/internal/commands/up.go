package commands

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/memory"
)

func newUpCommand() *cobra.Command {
	var options mesh.UpOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the whole mesh on this machine: router, workers, etcd and NATS",
		Long: `Runs the router, prefill workers, decode workers and, with --kvstore, block
stores in one process, each behind its own gRPC server, with an embedded etcd
and an embedded NATS server. It prints where it listens and then "ready". Ctrl-C
lets running requests finish; a second one ends it at once, and leaves folders
tandem-… in the folder for temporary files, which the next start removes.`,
		Example: `  tandem up
  tandem up --prefill 2 --decode 2
  tandem up --prefill 2 --kvstore 1 --store-memory 2GiB
  tandem up --model ./my-model --kv-memory 4GiB
  tandem up --engine simulated --prefill 8 --decode 8`,
		Args: exactly(),
	}
	options.RegisterFlags(cmd.Flags())
	logging := addProcessFlags(cmd)
	// Before anything else; `config validate` runs it as well.
	cmd.PreRunE = func(*cobra.Command, []string) error {
		return settingsError(cmd, cmp.Or(logging.validate(), options.Validate()))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger, registry, err := logging.build(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		progress := newProgress(cmd.ErrOrStderr())
		defer progress.finish()
		return mesh.Run(cmd.Context(), options, logger, registry, progress.report, func(up mesh.Up) {
			progress.finish()
			memory.KeepHeap(os.DirFS("/"), up.OutsideBytes, logger)
			announce(cmd.OutOrStdout(), cmd.Root().DisplayName(), up)
		})
	}
	completeMeshFlags(cmd)
	return cmd
}

// completeMeshFlags completes what mesh.Options takes from a list.
func completeMeshFlags(cmd *cobra.Command) {
	oneOf(cmd, "engine", engines.Auto, engines.CPU, engines.CUDA, engines.Simulated)
	oneOf(cmd, "device", engines.DeviceAuto, engines.DeviceCPU, "cuda:0")
	oneOf(cmd, "cuda-products", string(cuda.Own), string(cuda.CublasLt))
	oneOf(cmd, "cuda-weights", texts(cuda.WeightTypes())...)
	oneOf(cmd, "cuda-kv", texts(cuda.KVTypes())...)
	oneOf(cmd, "block-tokens", "16", "32", "64", "128", "256")
	oneOf(cmd, "generation-config", "model", "none")
	oneOf(cmd, "kv-memory", "auto")
}

func texts[T ~string](types []T) []string {
	all := make([]string, len(types))
	for i, t := range types {
		all[i] = string(t)
	}
	return all
}

// announce says in a few lines what runs, where, and what to type next.
func announce(out io.Writer, program string, up mesh.Up) {
	kind := func(embedded bool) string {
		if embedded {
			return " (embedded)"
		}
		return ""
	}
	var text strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&text, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("model", "%s (%s)", up.Model, filepath.Clean(up.ModelDir))
	line("device", "%s", up.Device)
	line("workers", "%s", strings.Join(slices.Concat(up.Prefill, up.Decode, up.Stores), ", "))
	line("etcd", "%s%s", strings.Join(up.Etcd, ", "), kind(up.EmbeddedEtcd))
	line("nats", "%s%s", strings.Join(up.NATS, ", "), kind(up.EmbeddedNATS))
	line("grpc", "%s", up.Address)
	if up.Control != "" {
		line("control", "%s", up.Control)
	}
	if up.HTTP != "" {
		line("http", "http://%s (a page to try it), http://%s/v1 (OpenAI's API)", up.HTTP, up.HTTP)
	}
	if up.Metrics != "" {
		line("metrics", "http://%s/metrics", up.Metrics)
	}
	line("try", "%s generate --addr %s --prompt \"Once upon a time\" --max-tokens 60", program, up.Address)
	text.WriteString("ready\n")
	_, _ = io.WriteString(out, text.String()) // nobody left to tell
}
