package commands

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// othersVariables begin with TANDEM_ but set no flag. Whoever has set one of them must be
// able to run any command. A test finds those that are missing here.
var othersVariables = []string{
	// deploy/compose
	"TANDEM_BIND", "TANDEM_COMPOSE_CERTS", "TANDEM_DECODE_GPU", "TANDEM_ETCD_IMAGE", "TANDEM_GRPC_PORT", "TANDEM_HTTP_PORT", "TANDEM_IMAGE",
	"TANDEM_NATS_IMAGE", "TANDEM_PREFILL_GPU", "TANDEM_ROUTER_MEMORY", "TANDEM_WORKER_CPUS", "TANDEM_WORKER_MEMORY",
	// tests and scripts
	"TANDEM_BROWSER", "TANDEM_CLANG", "TANDEM_COMPOSE", "TANDEM_COMPOSE_PROJECT", "TANDEM_CONTROL_PORT", "TANDEM_CUDA_DEVICE",
	"TANDEM_FAKE_CUDA", "TANDEM_JSON_SCHEMA_SUITE", "TANDEM_LONG", "TANDEM_OPENAI_MODEL", "TANDEM_OPENAI_URL", "TANDEM_PYTHON",
	"TANDEM_REQUIRE_EMULATION", "TANDEM_SCRATCH_TEST", "TANDEM_TRACES",
	// what clients in other languages, and scripts that install, call theirs
	"TANDEM_VERSION",
}

// annotationVariables says what a command does about a variable that sets nothing: by
// itself it refuses, so that TANDEM_DECOED=3 is not taken for three decode workers.
const annotationVariables = "tandem_variables"

const (
	// variablesWarn is for what runs in an environment that others made, and has to run
	// all the same: a part under a supervisor, whose variables may be of a later version
	// that was rolled back; a health check, and operators' commands, beside it.
	variablesWarn = "warn"
	// variablesIgnore is for what takes nothing from the environment.
	variablesIgnore = "ignore"
)

func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = value
}

// checkVariables looks for variables that set no flag of any command: those of other
// commands are there because someone calls them too. The flags of cmd have their values.
func checkVariables(cmd *cobra.Command, environ []string) error {
	does := cmd.Annotations[annotationVariables]
	if does == variablesIgnore || cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
		return nil
	}
	known := settings.NewVariables(othersVariables...)
	addVariables(known, cmd.Root())
	for _, stray := range known.Strays(environ) {
		if does != variablesWarn {
			return fmt.Errorf("%s: correct or unset it", stray)
		}
		warn(cmd, stray.String())
	}
	return nil
}

func addVariables(to *settings.Variables, cmd *cobra.Command) {
	to.Add(cmd.Flags())
	for _, child := range cmd.Commands() {
		addVariables(to, child)
	}
}

// warn writes a warning, where a command has a log into that.
func warn(cmd *cobra.Command, text string) {
	format, level := cmd.Flags().Lookup("log-format"), cmd.Flags().Lookup("log-level")
	if format == nil || level == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "tandem: warning: %s\n", text)
		return
	}
	// Flags with wrong values are refused later.
	if logger, err := telemetry.NewLogger(cmd.ErrOrStderr(), format.Value.String(), level.Value.String()); err == nil {
		logger.Warn("a setting has no effect", slog.String("why", text))
	}
}
