package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

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
