// Package pair puts two meshes under the same load, in turns: disaggregated beside
// aggregated serving, a simulated engine beside the real one. What disturbs the
// machine then disturbs both alike.
//
// Commands import it. It starts the meshes' processes and ends them before Run
// returns.
package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/rig"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// Side is one of the two.
type Side struct {
	Name string
	// Plan is its mesh, Mode what requests ask for.
	Plan rig.Plan
	Mode inferencev1.Mode
	// Drive, if set, does the runs instead of a mesh, and Client describes what it drives.
	Drive  func(context.Context, drive.Options) (*record.Run, error)
	Client client.Client
}

// Options say how to compare.
type Options struct {
	// Load is what is sent in a step; its Rate and Sweep are not used.
	Load loadtest.Config
	// Rates to measure; nil: those of serve.Rates around the larger capacity of the
	// two.
	Rates []float64
	// Share of the first side's capacity, if above 0, is the only rate instead.
	Share float64
	// Rounds is how often every rate is measured on each side.
	Rounds int
}

// Result is what was measured.
type Result struct {
	// Capacity of each side, requests a second, as serve's Estimate found it; 0 if the
	// rates were given.
	Capacity [2]float64
	// Steps in the order in which they were measured.
	Steps    []Step
	Outcomes [2]*loadtest.Outcome
	// Interrupted: it was ended early.
	Interrupted bool
}

// Step is one rate, measured on both sides, one after the other. Its JSON has what the
// reports do not say.
type Step struct {
	Rate    float64           `json:"rate"`
	Figures [2]report.Figures `json:"-"`
	// CPUSeconds that each part used meanwhile, by side and part.
	CPUSeconds [2]map[string]float64 `json:"cpu_s"`
	// Seconds that it took, warm-up and drain included.
	Seconds [2]float64 `json:"-"`
}

type side struct {
	Side
	mesh    *rig.Mesh // nil: none
	client  client.Client
	session *loadtest.Session
}

// ErrInterrupted is the error if the end of a context came before any step was whole.
var ErrInterrupted = errors.New("interrupted before a rate was measured on both sides")

// Run starts both meshes, measures and stops them. An end of ctx ends it early, with
// the steps that are whole; if there is none the error is ErrInterrupted.
func Run(ctx context.Context, sides [2]Side, o Options, progress loadtest.Progress) (_ *Result, err error) {
	var running [2]*side
	defer func() {
		for _, s := range running {
			if s != nil {
				err = errors.Join(err, s.stop())
			}
		}
	}()
	// What fails since it was asked to end is no news. This runs before the above.
	whole := 0
	defer func() {
		if err != nil && whole == 0 && ctx.Err() != nil {
			err = ErrInterrupted
		}
	}()
	for i, wanted := range sides {
		if running[i], err = start(ctx, wanted, o.Load, named{progress, wanted.Name}); err != nil {
			return nil, fmt.Errorf("%s: %w", wanted.Name, err)
		}
	}
	result := &Result{}
	rates, err := o.rates(ctx, running, result)
	if err != nil {
		return nil, err
	}
	if err := announce(running, rates, max(o.Rounds, 1), progress); err != nil {
		return nil, err
	}
	for round := range max(o.Rounds, 1) {
		for n, rate := range rates {
			step, complete, err := both(ctx, running, rate, (round+n)%2)
			if err != nil {
				return nil, err
			}
			if !complete {
				result.Interrupted = true
				if len(result.Steps) == 0 {
					return nil, ErrInterrupted
				}
				result.finish(running)
				return result, nil
			}
			result.Steps = append(result.Steps, step)
			whole++
		}
	}
	result.finish(running)
	return result, nil
}

// announce tells progress of all runs that follow.
func announce(running [2]*side, rates []float64, rounds int, progress loadtest.Progress) error {
	if progress == nil {
		return nil
	}
	var plan loadtest.Plan
	for _, rate := range slices.Repeat(rates, rounds) {
		for _, s := range running {
			step, err := s.session.Planned(rate)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			plan.Steps = append(plan.Steps, step)
		}
	}
	progress.Plan(plan)
	return nil
}

// rates are those to measure.
func (o Options) rates(ctx context.Context, running [2]*side, result *Result) ([]float64, error) {
	if o.Rates != nil {
		return o.Rates, nil
	}
	for i, s := range running {
		var err error
		if result.Capacity[i], err = s.session.Estimate(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if o.Share > 0 {
		return []float64{o.Share * result.Capacity[0]}, nil
	}
	return loadtest.Rates(max(result.Capacity[0], result.Capacity[1])), nil
}

// both takes one step; first says which side begins. It is not whole if ctx ended
// it.
func both(ctx context.Context, running [2]*side, rate float64, first int) (Step, bool, error) {
	step := Step{Rate: rate}
	for _, i := range [2]int{first, 1 - first} {
		s := running[i]
		before := s.cpuSeconds()
		var err error
		if step.Figures[i], err = s.session.Step(ctx, fmt.Sprintf("%.4g requests/s", rate), rate); err != nil {
			return step, false, fmt.Errorf("%s: %w", s.Name, err)
		}
		if s.mesh != nil {
			if err := s.mesh.Failed(); err != nil {
				return step, false, fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		step.CPUSeconds[i], step.Seconds[i] = s.cpuSeconds(), s.session.Last().Drained.Seconds()
		for part, seconds := range before {
			step.CPUSeconds[i][part] -= seconds
		}
		if s.session.Last().Interrupted {
			return step, false, nil
		}
	}
	return step, true, nil
}

// finish makes the reports of the sides, of which there is at least one step.
func (r *Result) finish(running [2]*side) {
	for i, s := range running {
		r.Outcomes[i] = s.session.SweepOutcome()
		r.Outcomes[i].Report.Name = s.Name
	}
}

func start(ctx context.Context, wanted Side, load loadtest.Config, progress loadtest.Progress) (*side, error) {
	s, err := &side{Side: wanted, client: wanted.Client}, error(nil)
	if load.Drive = wanted.Drive; wanted.Drive == nil {
		if s.mesh, err = rig.Start(ctx, wanted.Plan); err != nil {
			return nil, err
		}
		s.client, err = client.NewTandem(client.TandemConfig{Address: s.mesh.Address, Mode: wanted.Mode})
	}
	if err == nil {
		s.session, err = loadtest.NewSession(ctx, load, s.client, progress)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *side) stop() error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.mesh != nil {
		errs = append(errs, s.mesh.Stop())
	}
	return errors.Join(errs...)
}

// cpuSeconds is what each part of the mesh used so far.
func (s *side) cpuSeconds() map[string]float64 {
	if s.mesh == nil {
		return nil
	}
	return s.mesh.CPUSeconds()
}

// named puts a side's name before what a run says of itself.
type named struct {
	loadtest.Progress
	name string
}

func (n named) Begin(what string, total time.Duration) { n.Progress.Begin(n.name+", "+what, total) }
