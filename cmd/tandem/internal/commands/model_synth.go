package commands

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/model"
)

// synthJSON is what `model synth --json` prints.
type synthJSON struct {
	Directory   string `json:"directory"`
	Preset      string `json:"preset"`
	Seed        uint64 `json:"seed"`
	WeightBytes int64  `json:"weight_bytes"`
}

func newModelSynthCommand() *cobra.Command {
	names := presetNames()
	cmd := &cobra.Command{
		Use:   "synth --preset NAME --out DIR",
		Short: "Write a model with random weights, to measure speed or to try a model family",
		Long: `Writes a model with random weights, in a well-known shape or as a tiny model of a
family (tiny-…). The same preset and seed give the same bytes on any machine. DIR must
be empty or not exist.`,
		Example: `  tandem model synth --preset bench-200m --out /var/tmp/bench-200m
  tandem model synth --preset tiny-qwen3 --out /tmp/tiny-qwen3`,
		Args: exactly(),
	}
	preset := cmd.Flags().String("preset", "", "shape of the model: "+strings.Join(names, ", "))
	out := cmd.Flags().String("out", "", "directory to write")
	seed := cmd.Flags().Uint64("seed", 0, "seed of the random weights")
	oneOf(cmd, "preset", names...)
	asJSON := addJSON(cmd, "print one JSON object: directory, preset, seed, weight_bytes")
	onlyOnCommandLine(cmd, "preset", "out", "seed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *preset == "":
			return usageError(cmd, "no shape is given: pass --preset with one of "+strings.Join(names, ", "))
		case *out == "":
			return usageError(cmd, "no place is given: pass --out DIR")
		}
		shape, err := model.Preset(*preset)
		if err != nil {
			return usageError(cmd, "--preset: "+err.Error())
		}
		progress, finish := terminalProgress(cmd.ErrOrStderr())
		err = model.Synthesize(cmd.Context(), *out, shape, model.SynthOptions{Seed: *seed, Progress: progress})
		finish()
		if _, is := errors.AsType[*fs.PathError](err); is {
			return fmt.Errorf("%w: name a directory that you may write to, on a disk with enough space, with --out", err)
		}
		if err != nil {
			return err
		}
		size, err := weightBytes(*out)
		if err != nil {
			return err
		}
		return show(cmd, *asJSON, synthJSON{*out, *preset, *seed, size}, func(w io.Writer, s synthJSON) error {
			_, err := fmt.Fprintf(w, "%s in %s: %s of weights\ntry: %s up --model %[2]s\n",
				s.Preset, s.Directory, bytesText(s.WeightBytes), cmd.Root().DisplayName())
			return err
		})
	}
	return cmd
}
