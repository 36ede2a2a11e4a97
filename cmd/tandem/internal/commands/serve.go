package commands

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func newServeCommand() *cobra.Command {
	var options mesh.ServeOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one part of the mesh: a router, a prefill or decode worker, or a block store",
		Long: `Runs one part in this process. etcd and NATS run elsewhere. The part prints where it
listens and then "ready". A router is ready once it has a decode worker; until then it
says that it waits for one.

On SIGTERM, SIGHUP or Ctrl-C the part takes nothing new, lets running requests finish
within --stop-timeout, leaves the mesh and exits.`,
		Example: `  tandem serve --target=router --listen 127.0.0.1:7070
  tandem serve --target=prefill --etcd http://127.0.0.1:2379 --nats nats://127.0.0.1:4222
  tandem serve --target=decode --listen 0.0.0.0:7072 --kv-memory 4GiB
  tandem serve --target=kvtransfer --store-memory 16GiB`,
		Args: exactly(),
	}
	options.RegisterFlags(cmd.Flags())
	logging := addProcessFlags(cmd)
	// Before anything else; `config validate` runs it as well.
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := options.CheckTarget(func(flag string) bool { return onCommandLine(cmd, flag) }); err != nil {
			return usageError(cmd, err.Error())
		}
		return settingsError(cmd, cmp.Or(logging.validate(), options.Validate()))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		told := false
		return logging.run(cmd, func(logger *slog.Logger, registry *prometheus.Registry, progress mesh.Progress, say func(int64, string)) error {
			return mesh.Serve(cmd.Context(), options, logger, registry, progress, func(part mesh.Part) {
				var text announcement
				if !told {
					told = true
					text.line(options.Target, part.ID)
					text.line("grpc", part.Advertise)
					text.line("control", part.Control)
					text.line("http", httpLine(part.HTTP, options.Target == api.Name(controlv1.Role_ROLE_ROUTER)))
					text.line("metrics", metricsLine(part.Metrics))
				}
				if part.Waiting {
					text.line("waiting", fmt.Sprintf("for a decode worker: start one with '%s serve --target=decode'", cmd.Root().DisplayName()))
				} else {
					text.WriteString("ready\n")
				}
				say(part.OutsideBytes, text.String())
			})
		})
	}
	oneOf(cmd, "target", api.Names[controlv1.Role]()...)
	completeMeshFlags(cmd)
	annotate(cmd, annotationVariables, variablesWarn)
	return cmd
}

// onCommandLine says whether a flag of cmd was given there, and not in the environment
// or a file.
func onCommandLine(cmd *cobra.Command, flag string) bool {
	f := cmd.Flags().Lookup(flag)
	return f != nil && f.Changed && settings.Source(f) == settings.CommandLine
}
