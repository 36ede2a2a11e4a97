package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:         "version",
		Short:       "Print what this binary was built from",
		Example:     "  tandem version --json",
		Annotations: map[string]string{annotationVariables: variablesIgnore},
		Args:        exactly(),
	}
	asJSON := addJSON(cmd, "print one JSON object: version, revision, go, platform")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return printVersion(cmd.OutOrStdout(), *asJSON) }
	return cmd
}

func printVersion(w io.Writer, asJSON bool) error {
	build, platform := telemetry.ReadBuild(), runtime.GOOS+"/"+runtime.GOARCH
	known := build.Revision != ""
	if !known {
		build.Revision = "unknown"
	}
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			telemetry.Build
			Platform string `json:"platform"`
		}{build, platform})
	}
	text := build.String()
	if !known { // "go run" and builds without version control leave none
		text = build.Version + " (revision unknown) " + build.Go
	}
	_, err := fmt.Fprintf(w, "tandem %s %s\n", text, platform)
	return err
}
