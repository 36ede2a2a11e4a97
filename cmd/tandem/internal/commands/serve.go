package commands

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/memory"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func newServeCommand() *cobra.Command {
	var options mesh.ServeOptions
	targets := api.Names[controlv1.Role]()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one part of the mesh: a router, a prefill or decode worker, or a block store",
		Long: `Runs one part in this process. etcd and NATS run elsewhere. The part prints where it
listens and then "ready". A router is ready once its workers could serve a request; until
then it prints what it lacks. If it cannot reach etcd, it starts with its last view of the
workers, if it has one, and prints that.

On SIGTERM, SIGHUP or Ctrl-C the part refuses new requests, lets running ones finish
within --stop-timeout, leaves the mesh and exits.`,
		Example: `  tandem serve --target=router --listen 127.0.0.1:7070
  tandem serve --target=prefill --etcd http://127.0.0.1:2379 --nats nats://127.0.0.1:4222
  tandem serve --target=decode --listen 0.0.0.0:7072 --kv-memory 4GiB
  tandem serve --target=kvtransfer --store-memory 16GiB`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && slices.Contains(targets, args[0]) {
				return usageError(cmd, fmt.Sprintf("%s takes the part to run as a flag, did you mean --target=%s?", cmd.CommandPath(), args[0]))
			}
			return exactly()(cmd, args)
		},
	}
	options.RegisterFlags(cmd.Flags())
	logging := addProcessFlags(cmd)
	// Before anything else; `config validate` runs it as well.
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if options.Target == "" {
			return usageError(cmd, "no part to run is given: pass --target with router, prefill, decode or kvtransfer (a block store); 'tandem up' runs a whole mesh")
		}
		if err := options.CheckTarget(func(flag string) bool { return onCommandLine(cmd, flag) }); err != nil {
			return usageError(cmd, err.Error())
		}
		return settingsError(cmd, cmp.Or(logging.validate(), options.Validate()))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if options.Target == api.Name(controlv1.Role_ROLE_ROUTER) {
			defer memory.CollectSeldom(os.Getenv)()
		}
		told := false
		return logging.run(cmd, func(logger *slog.Logger, registry *prometheus.Registry, progress mesh.Progress, say func(int64, string)) error {
			return mesh.Serve(cmd.Context(), options, logger, registry, progress, func(part mesh.Part) {
				say(part.OutsideBytes, announcePart(cmd.Root().DisplayName(), options.Target, part, !told))
				told = true
			})
		})
	}
	oneOf(cmd, "target", targets...)
	completeMeshFlags(cmd)
	annotate(cmd, annotationVariables, variablesWarn)
	return cmd
}

// announcePart says what a part has come to, the first time with where it is reached.
func announcePart(program, target string, part mesh.Part, first bool) string {
	var text announcement
	if first {
		text.line(target, part.ID)
		text.line("grpc", part.Advertise)
		text.line("control", part.Control)
		if target == api.Name(controlv1.Role_ROLE_ROUTER) {
			text.line("http", apiLine(part.TLS, part.HTTP))
		} else {
			text.line("http", urlOf(part.TLS, part.HTTP, "/readyz"))
		}
		text.line("metrics", urlOf(false, part.Metrics, "/metrics"))
		text.line("auth", authLine(part.Auth, part.Exposed, part.TLS))
		if part.OldView {
			text.line("etcd", fmt.Sprintf("cannot be reached at %s: using the workers that were there %s ago", strings.Join(part.Etcd, ", "), part.ViewAge.Round(time.Second)))
		}
	}
	if part.Unserved != "" {
		text.line("waiting", fmt.Sprintf("%s: '%s workers' says why", part.Unserved, program))
	} else {
		text.WriteString("ready\n")
	}
	return text.String()
}

// onCommandLine says whether a flag of cmd was given there, and not in the environment
// or a file.
func onCommandLine(cmd *cobra.Command, flag string) bool {
	f := cmd.Flags().Lookup(flag)
	return f != nil && f.Changed && settings.Source(f) == settings.CommandLine
}
