package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// newConfigCommand shows and checks the configuration of the commands that build
// makes: those that take --config.
func newConfigCommand(build ...func() *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Print the configuration in force, or check a configuration file",
		Example: "  tandem config print serve --config tandem.yaml\n  tandem config validate tandem.yaml",
	}
	asGroup(cmd)
	cmd.AddCommand(newConfigPrintCommand(build), newConfigValidateCommand(build))
	return cmd
}

func newConfigPrintCommand(build []func() *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print COMMAND [flags of COMMAND]",
		Short: "Print the configuration a command would run with, and where each value comes from",
		Long: `Prints the configuration that COMMAND would run with, given the same flags,
environment and --config FILE. The output is YAML, and can be used as a configuration
file. A comment on each line names the source of the value.`,
		Example: "  tandem config print serve --config tandem.yaml",
	}
	asGroup(cmd)
	for _, b := range build {
		cmd.AddCommand(configPrintOf(b()))
	}
	return cmd
}

// configPrintOf has the flags of a command, but prints them instead of running it.
func configPrintOf(of *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:         of.Name(),
		Short:       "Print the configuration that '" + of.Name() + "' would run with",
		Example:     "  tandem config print " + of.Name() + " --config tandem.yaml",
		Args:        exactly(),
		Annotations: map[string]string{annotationVariables: variablesWarn}, // what it prints is in force all the same
	}
	cmd.Flags().AddFlagSet(of.Flags())
	asJSON := addJSON(cmd, "print one JSON object: name to value and source")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*asJSON {
			return settings.Print(cmd.OutOrStdout(), cmd.Flags())
		}
		type setting struct {
			Value  any    `json:"value"`
			Source string `json:"source"`
		}
		byName := map[string]setting{}
		for _, v := range settings.Values(cmd.Flags()) {
			byName[v.Name] = setting{v.Value, v.Source}
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(byName)
	}
	return cmd
}

func newConfigValidateCommand(build []func() *cobra.Command) *cobra.Command {
	var names []string
	for _, b := range build {
		names = append(names, b().Name())
	}
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a configuration file without starting anything",
		Long: `Checks that every key of FILE is a flag of its command, and that the command would
start with every value. Keys that FILE leaves out have their defaults. A file for
'serve' may leave the target to the command line; it is then checked as that of a worker.

Without --for, the keys decide which command FILE is for: only 'serve' has a target,
and only 'up' has a number of decode workers. A file can be for both.`,
		Example:     "  tandem config validate tandem.yaml\n  tandem config validate --for serve tandem.yaml",
		Annotations: map[string]string{annotationVariables: variablesIgnore},
		Args:        exactly("FILE, a configuration file"),
	}
	command := cmd.Flags().String("for", "", "command that the file is for: "+strings.Join(names, " or ")+" (default: decided by its keys)")
	oneOf(cmd, "for", names...)
	asJSON := addJSON(cmd, "print one JSON object: file, valid, for, error")
	onlyOnCommandLine(cmd, "for")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := args[0]
		if *command != "" && !slices.Contains(names, *command) {
			return usageError(cmd, fmt.Sprintf("no command %q takes a configuration file: pass --for with one of %s", *command, strings.Join(names, ", ")))
		}
		valid, err := validFor(cmd.Root(), build, *command, file)
		if *asJSON {
			result := struct {
				File  string   `json:"file"`
				Valid bool     `json:"valid"`
				For   []string `json:"for,omitempty"`
				Error string   `json:"error,omitempty"`
			}{File: file, Valid: err == nil, For: valid}
			if err != nil {
				result.Error = err.Error()
			}
			if printErr := json.NewEncoder(cmd.OutOrStdout()).Encode(result); printErr != nil {
				return printErr
			}
		} else if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is a valid configuration of 'tandem %s'\n", file, strings.Join(valid, "' and of 'tandem "))
		}
		return err
	}
	return cmd
}

// validFor are the commands that a file is valid for, of those that build makes: of the
// one that is asked for, or else of those that have the most of its keys. If there is none, the
// error is what is wrong with it for the first of these, or for another whose keys have one that
// is spelled more like the unknown key.
func validFor(root *cobra.Command, build []func() *cobra.Command, asked, file string) (valid []string, failed error) {
	var known []int
	var commands []*cobra.Command
	for _, b := range build {
		of := b()
		if asked != "" && of.Name() != asked {
			continue
		}
		n, err := settings.Known(of.Flags(), file)
		if err != nil {
			return nil, err
		}
		known, commands = append(known, n), append(commands, of)
	}
	most := slices.Max(known)
	var shown error
	for i, of := range commands {
		if known[i] < most {
			continue
		}
		switch err := validateFile(of, file); {
		case err == nil:
			valid = append(valid, of.Name())
		case shown == nil || nearer(err, shown):
			shown, failed = err, fileFailure(root, of.Name(), err)
		}
	}
	if len(valid) > 0 {
		return valid, nil
	}
	return nil, failed
}

// nearer reports whether err suggests a key that is spelled more like the unknown one, which is the
// same in both, than what other suggests.
func nearer(err, other error) bool {
	a, is := errors.AsType[*settings.UnknownKey](err)
	b, too := errors.AsType[*settings.UnknownKey](other)
	if !is || !too || a.Key != b.Key || a.Nearest == b.Nearest {
		return false
	}
	nearest, _ := spelling.Nearest(a.Key, slices.Values([]string{a.Nearest, b.Nearest}))
	return nearest == a.Nearest
}

// validateFile checks a file as the command that it is for would. of is that
// command, never run.
func validateFile(of *cobra.Command, file string) error {
	if err := settings.Validate(of.Flags(), file); err != nil {
		return err
	}
	// One file may do for several targets, which then stand on the command line. A router checks
	// what a worker does, and who may call it; a store checks less, having no model.
	if target := of.Flags().Lookup("target"); target != nil && target.Value.String() == "" {
		if err := target.Value.Set("decode"); err != nil {
			return err
		}
	}
	if of.PreRunE == nil {
		return nil
	}
	if err := of.PreRunE(of, nil); err != nil {
		if exit, is := errors.AsType[*exitError](err); is && exit.cause != nil {
			err = exit.cause // the command line of `config validate` is right
		}
		if _, is := errors.AsType[*sourceError](err); is {
			return err
		}
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
