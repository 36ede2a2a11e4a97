package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
)

// measuredModel is a model whose weights a command measures with: one that is there, or
// random weights of a shape, for as long as it takes.
type measuredModel struct {
	name  string // a folder, or what modeldir.Find knows; "" for a shape
	shape func() (model.Shape, error)
	// load says how its weights are loaded, or why they cannot be.
	load func(m *model.Model) (cpu.Config, error)
}

// measure opens and loads the model, hands its weights to use with a way to report what
// is done of that, and frees everything again.
func (mm measuredModel) measure(ctx context.Context, stderr io.Writer, use func(weights *cpu.Weights, report func(stage string, done, total int64)) error) (err error) {
	p := newProgress(stderr)
	defer p.finish()
	dir, remove, err := mm.directory(ctx, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	m, err := model.OpenContext(ctx, dir, model.Options{Progress: p.report})
	if err != nil {
		return err
	}
	var weights *cpu.Weights
	config, err := mm.load(m)
	if err == nil {
		config.Progress = func(done, total int64) { p.report("pack", done, total) }
		config.Warn = func(err error) {
			p.finish()
			_, _ = fmt.Fprintf(stderr, "warning: %v\n", err)
		}
		weights, err = cpu.Load(ctx, m, config)
	}
	if err := errors.Join(err, m.Close()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	return use(weights, p.report)
}

// directory is the model's; remove undoes what was written for it.
func (mm measuredModel) directory(ctx context.Context, p *progress) (dir string, remove func() error, err error) {
	if mm.name != "" {
		dir, err = modeldir.Find(mm.name)
		return dir, func() error { return nil }, err
	}
	shape, err := mm.shape()
	if err != nil {
		return "", nil, err
	}
	parent, err := tempfolder.Make("measure")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the random weights: %w", err)
	}
	remove = parent.Remove
	dir = filepath.Join(parent.Path, shape.Name)
	if err := model.Synthesize(ctx, dir, shape, model.SynthOptions{Progress: p.report}); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

// measuredFlags choose the weights that a benchmark measures with, and their threads.
type measuredFlags struct {
	model, preset string
	threads       int
	layers        int // of a random model; 0: all of the preset
}

// add adds the flags; condition begins what is said of each.
func (f *measuredFlags) add(cmd *cobra.Command, condition string) {
	presets := presetNames()
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", condition+"directory of the model (default: a random model of --preset)")
	fs.StringVar(&f.preset, "preset", "bench-200m", condition+"shape of the random model: "+strings.Join(presets, ", "))
	fs.IntVar(&f.threads, "threads", 0, condition+"compute threads (default: as many as the process may use)")
	oneOf(cmd, "preset", presets...)
}

// check checks the flags, and a plan for the model as far as that is known.
func (f *measuredFlags) check(cmd *cobra.Command, plan interface {
	Validate() error
	ValidateFor(name string, contextTokens int) error
}) error {
	if f.threads < 0 || f.threads > 1023 {
		return fmt.Errorf("--threads: %d is outside 0 to 1023", f.threads)
	}
	if f.model != "" {
		if cmd.Flags().Changed("preset") {
			return errors.New("--model and --preset are both given: pass one of them")
		}
		return plan.Validate()
	}
	shape, err := f.shape()
	if err != nil {
		return err
	}
	return plan.ValidateFor(shape.Name, shape.ContextTokens)
}

// shape is that of the random model.
func (f *measuredFlags) shape() (model.Shape, error) {
	shape, err := model.Preset(f.preset)
	if err != nil {
		return model.Shape{}, fmt.Errorf("--preset: %w", err)
	}
	switch {
	case f.layers < 0 || f.layers > shape.Layers:
		return model.Shape{}, fmt.Errorf("--layers: %d is outside 0 (all) to %d, the layers of %s", f.layers, shape.Layers, shape.Name)
	case f.layers > 0 && f.layers < shape.Layers:
		shape.Name, shape.Layers = fmt.Sprintf("%s-%d-layers", shape.Name, f.layers), f.layers
	}
	return shape, nil
}

// measureWith loads the weights that flags choose, as load says, and measures with them.
func measureWith[R any](cmd *cobra.Command, f measuredFlags, load func(*model.Model) (cpu.Config, error),
	measure func(weights *cpu.Weights, progress func(done, total int64)) (R, error)) (result R, err error) {
	m := measuredModel{name: f.model, shape: f.shape, load: load}
	err = m.measure(cmd.Context(), cmd.ErrOrStderr(), func(weights *cpu.Weights, report func(stage string, done, total int64)) error {
		result, err = measure(weights, func(done, total int64) { report("profile", done, total) })
		return err
	})
	return result, err
}

// presetNames are what --preset takes.
func presetNames() (names []string) {
	for _, shape := range model.Presets() {
		names = append(names, shape.Name)
	}
	return names
}

// checkPlan refuses a plan that a model does not allow, or that takes more memory than is
// left, and says what to choose instead.
func checkPlan(plan interface {
	ValidateFor(name string, contextTokens int) error
	Bytes(spec model.Spec) int64
}, spec model.Spec, instead string) error {
	if err := plan.ValidateFor(spec.Name, spec.ContextTokens); err != nil {
		return err
	}
	bytes := plan.Bytes(spec)
	if left, known := memory.Available(os.DirFS("/")); known && bytes > left.Bytes {
		return fmt.Errorf("measuring takes %s of memory and %s are left (%s): choose %s", bytesText(bytes), bytesText(left.Bytes), left.By, instead)
	}
	return nil
}
