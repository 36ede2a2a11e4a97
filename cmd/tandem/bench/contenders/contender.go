// Package contenders puts meshes under the same load, in turns: disaggregated beside
// aggregated serving, a simulated engine beside the real one. What disturbs the machine
// then disturbs all alike. It measures them at given rates, or searches for the capacity
// of each.
//
// Commands import it. It starts the meshes' processes and ends them before it returns.
package contenders

import (
	"context"
	"errors"
	"fmt"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// Contender is one of those that are compared.
type Contender struct {
	Name string
	// Plan is its mesh, Mode what requests ask for.
	Plan processes.Plan
	Mode inferencev1.Mode
	// Virtual, if set, is what runs instead of a mesh.
	Virtual Virtual
}

// Virtual is a cluster on virtual time.
type Virtual interface {
	// Client describes it.
	client.Client
	// Ask sets the bounds that requests carry from now on; 0: none.
	Ask(Bounds)
	// Drive does a run.
	Drive(context.Context, drive.Options) (*record.Run, error)
}

// Bounds are the latencies that requests ask of the router; 0: none.
type Bounds struct{ TTFT, TPOT time.Duration }

// running is a contender that has started.
type running struct {
	Contender
	mesh    *processes.Mesh // nil: none
	session *loadtest.Session
	client  client.Client // of session
}

// ErrInterrupted is the error if the end of a context came before anything was measured.
var ErrInterrupted = errors.New("interrupted before a rate was measured on all sides")

// Set is contenders that run. Not for concurrent use.
type Set struct{ all []*running }

// Start starts all. Stop ends them.
func Start(ctx context.Context, wanted []Contender) (*Set, error) {
	s := &Set{}
	for _, c := range wanted {
		r := &running{Contender: c}
		if c.Virtual == nil {
			var err error
			if r.mesh, err = processes.Start(ctx, c.Plan); err != nil {
				return nil, errors.Join(r.failure(err), s.Stop())
			}
		}
		s.all = append(s.all, r)
	}
	return s, nil
}

// Stop ends all, and waits for it.
func (s *Set) Stop() error {
	var errs []error
	for _, r := range s.all {
		errs = append(errs, r.close())
		if r.mesh != nil {
			errs = append(errs, r.mesh.Stop())
		}
	}
	return errors.Join(errs...)
}

// Use starts contenders, has measure use them, and stops them. After the end of ctx failures are expected:
// an error of measure is then ErrInterrupted.
func Use(ctx context.Context, wanted []Contender, measure func(*Set) error) error {
	s, err := Start(ctx, wanted)
	var stopped error
	if err == nil {
		err, stopped = measure(s), s.Stop()
	}
	if err != nil && ctx.Err() != nil {
		return ErrInterrupted
	}
	return errors.Join(err, stopped)
}

// open begins a session of each with a load whose requests carry bounds. None sends a contender a prompt of an
// earlier session, and all begin with the same.
func (s *Set) open(ctx context.Context, load loadtest.Config, carry Bounds, progress loadtest.Progress) error {
	load.FirstStep = s.nextStep()
	for _, r := range s.all {
		if err := r.open(ctx, load, carry, progress); err != nil {
			return err
		}
	}
	return nil
}

// Idle measures the first contender with one request of a load at a time.
func (s *Set) Idle(ctx context.Context, load loadtest.Config, progress loadtest.Progress) (loadtest.Idle, error) {
	r := s.all[0]
	load.FirstStep = s.nextStep()
	if err := r.open(ctx, load, Bounds{}, progress); err != nil {
		return loadtest.Idle{}, err
	}
	idle, err := r.session.Idle(ctx)
	return idle, r.failure(err)
}

// nextStep is that of all sessions so far.
func (s *Set) nextStep() int {
	next := 0
	for _, r := range s.all {
		if r.session != nil {
			next = max(next, r.session.NextStep())
		}
	}
	return next
}

// open begins a session of a load whose requests carry bounds.
func (r *running) open(ctx context.Context, load loadtest.Config, carry Bounds, progress loadtest.Progress) error {
	if err := r.close(); err != nil {
		return r.failure(err)
	}
	var err error
	if r.Virtual != nil {
		r.Virtual.Ask(carry)
		r.client, load.Drive = r.Virtual, r.Virtual.Drive
	} else if r.client, err = client.NewTandem(client.TandemConfig{Address: r.mesh.Address, Mode: r.Mode, TTFT: carry.TTFT, TPOT: carry.TPOT}); err != nil {
		return r.failure(err)
	}
	if progress != nil {
		progress = Named{progress, r.Name}
	}
	r.session, err = loadtest.NewSession(ctx, load, r.client, progress)
	return r.failure(err)
}

func (r *running) close() error {
	if r.client == nil {
		return nil
	}
	err := r.client.Close()
	r.client = nil
	return err
}

// taken is what one contender did at one rate.
type taken struct {
	figures report.Figures
	// cpuSeconds that each part used meanwhile, and seconds that it took, warm-up and drain
	// included.
	cpuSeconds map[string]float64
	seconds    float64
}

// take measures a rate. It is not whole if ctx ended it: what fails since then is no news.
func (r *running) take(ctx context.Context, what string, rate float64) (t taken, whole bool, err error) {
	before := r.cpuSeconds()
	t.figures, err = r.session.Step(ctx, what, rate)
	if err == nil && r.mesh != nil {
		err = r.mesh.Failed()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return t, false, r.failure(err)
	}
	t.cpuSeconds, t.seconds = r.cpuSeconds(), r.session.Last().Drained.Seconds()
	for part, seconds := range before {
		t.cpuSeconds[part] -= seconds
	}
	return t, !r.session.Last().Interrupted, nil
}

// cpuSeconds is what each part of the mesh used so far.
func (r *running) cpuSeconds() map[string]float64 {
	if r.mesh == nil {
		return nil
	}
	return r.mesh.CPUSeconds()
}

// failure is err with the contender's name.
func (r *running) failure(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", r.Name, err)
}

// outcomes are the reports of all that the sessions measured.
func (s *Set) outcomes() (all []*loadtest.Outcome) {
	for _, r := range s.all {
		o := r.session.SweepOutcome()
		o.Report.Name = r.Name
		all = append(all, o)
	}
	return all
}

// Named puts a name before what a run says of itself.
type Named struct {
	loadtest.Progress
	Name string
}

// Begin says that a run begins.
func (n Named) Begin(what string, total time.Duration) { n.Progress.Begin(n.Name+", "+what, total) }

// turn is the order of n contenders in a step: each begins in turn.
func turn(n, step int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (step + i) % n
	}
	return order
}
