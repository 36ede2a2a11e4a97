package commands

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/signals"
)

func newUpCommand() *cobra.Command {
	var options mesh.UpOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the whole mesh on this machine: router, workers, etcd and NATS",
		Long: `Runs the router, prefill workers, decode workers and, with --kvstore, block stores in
one process, each behind its own gRPC server. etcd and NATS are embedded. The command
prints where it listens and then "ready".

With --autoscale prefill=1..4,decode=1..4 it starts and stops workers with the load;
--log-level info shows when and why.

Ctrl-C lets running requests finish. A second Ctrl-C ends the process at once and leaves
folders tandem-… among the temporary files, which the next start removes.

With --tls it encrypts all connections, and makes the certificates by which parts and
operators know each other. Clients need ca.crt of the folder that it prints.`,
		Example: `  tandem up
  tandem up --prefill 2 --decode 2
  tandem up --autoscale prefill=1..4,decode=1..4
  tandem up --prefill 2 --kvstore 1 --store-memory 2GiB
  tandem up --model ./my-model --kv-memory 4GiB
  tandem up --engine simulated --prefill 8 --decode 8
  tandem up --tls`,
		Args: exactly(),
	}
	options.RegisterFlags(cmd.Flags())
	logging := addProcessFlags(cmd)
	// Before anything else; `config validate` runs it as well.
	cmd.PreRunE = func(*cobra.Command, []string) error {
		return settingsError(cmd, cmp.Or(logging.validate(), options.Validate(), scaledTwice(cmd, options)))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options.Given = cmd.Flags().Changed
		options.Stopping = func(requests int) {
			if requests > 0 && cmd.Context().Err() != nil { // else it stops by itself
				fmt.Fprintf(cmd.ErrOrStderr(), "finishing %s; Ctrl-C again ends at once\n", counted(requests, "request"))
			}
		}
		defer memory.CollectSeldom(os.Getenv)()
		return logging.run(cmd, func(logger *slog.Logger, registry *prometheus.Registry, progress mesh.Progress, say func(int64, string)) error {
			return mesh.Run(cmd.Context(), options, logger, registry, progress, func(up mesh.Up) {
				say(up.OutsideBytes, announce(cmd.Root().DisplayName(), up))
			})
		})
	}
	completeMeshFlags(cmd)
	return cmd
}

// scaledTwice refuses a number of workers for a pool that follows the load.
func scaledTwice(cmd *cobra.Command, options mesh.UpOptions) error {
	for flag, most := range map[string]int{"prefill": options.Autoscale.Prefill.Max, "decode": options.Autoscale.Decode.Max} {
		if most > 0 && cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s: --autoscale says how many there are: leave out one of the two", flag)
		}
	}
	return nil
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
func announce(program string, up mesh.Up) string {
	kind := func(embedded bool) string {
		if embedded {
			return " (embedded)"
		}
		return ""
	}
	var text announcement
	encrypted, client, operator := up.Certs != "", "", ""
	if encrypted {
		client = " --ca " + shellQuoted(filepath.Join(up.Certs, authority.CAFile))
		operator = client + " --cert " + shellQuoted(filepath.Join(up.Certs, mesh.OperatorCerts, authority.CertFile))
	}
	at := func(name, flag, address string) {
		if up.Everywhere[flag] {
			address = noted(address, "on all interfaces")
		}
		if taken := up.Taken[flag]; taken != "" {
			address = noted(address, taken+" is taken")
		}
		text.line(name, address)
	}
	text.line("model", fmt.Sprintf("%s (%s)", up.Model, filepath.Clean(up.ModelDir)))
	text.line("device", up.Device)
	text.line("workers", strings.Join(slices.Concat(up.Prefill, up.Decode, up.Stores), ", "))
	text.line("etcd", strings.Join(up.Etcd, ", ")+kind(up.EmbeddedEtcd))
	text.line("nats", signals.WithoutPasswords(up.NATS)+kind(up.EmbeddedNATS))
	at("grpc", "listen", up.Address)
	at("control", "control", up.Control)
	at("http", "http", apiLine(encrypted, up.HTTP))
	if !up.Auth && !strings.HasPrefix(up.HTTP, api.UnixScheme) { // a browser has no key to show, and opens no socket
		text.line("page", urlOf(encrypted, up.HTTP, ""))
	}
	at("metrics", "metrics", urlOf(false, up.Metrics, "/metrics"))
	text.line("certs", up.Certs)
	asked := authLine(up.Auth, up.Exposed, encrypted)
	if up.Auth && up.EmbeddedEtcd && !encrypted { // etcd is on loopback, and asks nobody
		asked += ", and so can other users of this machine, in etcd, unless --tls is passed"
	}
	text.line("auth", asked)
	text.line("key", up.FirstKey)
	key := ""
	if up.FirstKey != "" {
		key = "TANDEM_API_KEY=" + up.FirstKey + " "
	}
	text.line("try", key+fmt.Sprintf("%s generate --addr %s%s --prompt \"Once upon a time\" --max-tokens 60", program, up.Address, client))
	if up.Control != "" && (up.Control != mesh.DefaultControl || operator != "") {
		text.line("try", fmt.Sprintf("%s workers --control %s%s", program, up.Control, operator))
	}
	text.WriteString("ready\n")
	return text.String()
}

// authLine says who may call, unless it goes without saying: everybody, of this machine.
func authLine(required, exposed, encrypted bool) string {
	switch {
	case required && exposed && !encrypted:
		return "required, in the clear (--insecure): 'tandem keys create' makes keys"
	case required:
		return "required: 'tandem keys create' makes keys"
	case exposed:
		return "none (--insecure): everybody who reaches these addresses may call"
	}
	return ""
}
