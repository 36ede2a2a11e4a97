package evidence

import "context"

// live says how far a live mesh is from its simulation.
type live struct{}

func (live) Name() string  { return "live" }
func (live) Title() string { return "The live mesh beside its simulation" }

// Run measures nothing: a live mesh with a CPU engine needs a machine that does nothing else for
// some minutes, and its figures are of one machine. They stand in docs/benchmarks.md.
func (live) Run(context.Context, Options) (*Result, error) {
	return &Result{
		Intro: []string{"The figures of this page are worth what the simulation is worth. `tandem bench simulated --virtual` profiles an engine, measures a live mesh, and runs the same load on virtual time. [benchmarks.md](benchmarks.md#simulated-and-live) has the comparison."},
	}, nil
}
