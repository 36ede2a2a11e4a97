package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Device is what steps take their time from on virtual time.
type Device struct {
	// Profile is valid.
	Profile *latency.Profile
	// Jitter spreads the steps: the standard deviation of their time over its mean. It
	// is log-normal, with the profile's time as the mean.
	Jitter float64
}

const (
	// virtualVocabulary is how many tokens there are on virtual time.
	virtualVocabulary = 32000
	// countEvery is at how many steps allocations are counted once, which takes longer
	// than the scheduler does.
	countEvery = 16
	// checkEvery is at how many steps the context is looked at once.
	checkEvery = 256
)

// Virtual runs every policy of the plan on virtual time. progress, if set, is told after
// each policy how many are done.
func Virtual(ctx context.Context, p Plan, d Device, progress func(done, total int64)) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := d.Profile.Validate(); err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	if err := bounds.Within("--jitter", d.Jitter, 0, latency.MaxJitter); err != nil {
		return nil, err
	}
	result := newResult(p, "virtual")
	result.Model, result.Jitter = d.Profile.Model, d.Jitter
	for i, policy := range p.Policies {
		v, err := newVirtual(p, policy, d)
		if err != nil {
			return nil, err
		}
		if err := v.run(ctx); err != nil {
			return nil, fmt.Errorf("policy %d: %w", i+1, err)
		}
		result.Rows = append(result.Rows, v.row())
		if progress != nil {
			progress(int64(i+1), int64(len(p.Policies)))
		}
	}
	return result, nil
}

// virtual is one policy on virtual time.
type virtual struct {
	*collector
	core   *scheduler.Scheduler
	device Device
	random *rand.Rand // of jitter

	flight  *scheduler.RunStep
	began   time.Duration
	ends    time.Duration
	nextID  scheduler.SequenceID
	tokens  []int32 // scratch
	preempt int

	cost cost
}

// cost is what the scheduler itself takes.
type cost struct {
	all           time.Duration   // every call
	steps         []time.Duration // calls that end a step
	counted       int             // of those whose allocations were counted
	allocs        uint64
	plain         int // of those between two steps of decodes alone
	plainAllocs   uint64
	before, after runtime.MemStats
}

func newVirtual(p Plan, policy Policy, d Device) (*virtual, error) {
	config := p.config(policy)
	config.Pool = kvcache.NewPool(p.blocks(), p.BlockTokens, "bench", "bench")
	core, err := scheduler.New(config)
	if err != nil {
		return nil, fmt.Errorf("make a scheduler: %w", err)
	}
	return &virtual{
		collector: newCollector(p, policy, byProfile{d.Profile}), core: core, device: d, random: source(p.Seed, math.MaxUint64),
	}, nil
}

// run goes from event to event until nothing is left.
func (v *virtual) run(ctx context.Context) error {
	cut := false
	for {
		if v.steps%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		due, comes := v.arrivals.due()
		switch {
		case comes && (v.flight == nil || due <= v.ends):
			v.submit(max(due, v.ended))
		case v.flight != nil:
			if err := v.finish(); err != nil {
				return err
			}
		case v.core.Idle():
			return nil
		default:
			return errors.New("the scheduler runs nothing although requests are left")
		}
		if !cut && v.arrivals.over() {
			cut = true
			for _, r := range v.arrivals.cut() {
				v.handle(v.ended, scheduler.Cancel{ID: r.id})
			}
		}
	}
}

func (v *virtual) submit(now time.Duration) {
	v.nextID++
	r := v.arrivals.take()
	v.submitted(r, v.nextID)
	v.handle(now, scheduler.Submit{Request: r.submission(v.plan.Seed, virtualVocabulary)})
}

func (v *virtual) finish() error {
	run, took := v.flight, v.ends-v.began
	v.flight = nil
	v.tokens = v.tokens[:0]
	for i := range run.Batch.Sequences {
		token := int32(-1)
		if s := run.Batch.Sequences[i].Sample; s != nil {
			token = int32((s.Params.Seed*31 + s.Offset) % virtualVocabulary)
		}
		v.tokens = append(v.tokens, token)
	}
	v.end(&run.Batch, v.tokens, virtualVocabulary)
	v.step(&run.Batch, run.Parts, v.began, v.ends)

	count := v.collector.steps%countEvery == 0
	plain := count && decodesAlone(run.Parts)
	if count {
		runtime.ReadMemStats(&v.cost.before)
	}
	spent, actions := v.call(v.ends, scheduler.StepDone{Tokens: v.tokens, Compute: took})
	if count {
		runtime.ReadMemStats(&v.cost.after)
		allocs := v.cost.after.Mallocs - v.cost.before.Mallocs
		v.cost.counted++
		v.cost.allocs += allocs
		if next := planned(actions); plain && next != nil && decodesAlone(next.Parts) {
			v.cost.plain++
			v.cost.plainAllocs += allocs
		}
	} else {
		v.cost.steps = append(v.cost.steps, spent)
	}
	return v.act(v.ends, actions)
}

// handle is a call whose answer is acted on.
func (v *virtual) handle(now time.Duration, event scheduler.Event) {
	_, actions := v.call(now, event)
	_ = v.act(now, actions) // only steps fail
}

func (v *virtual) call(now time.Duration, event scheduler.Event) (time.Duration, []scheduler.Action) {
	at := time.Unix(0, 0).Add(now)
	began := time.Now()
	actions := v.core.Handle(at, event)
	spent := time.Since(began)
	v.cost.all += spent
	return spent, actions
}

func (v *virtual) act(now time.Duration, actions []scheduler.Action) error {
	for _, action := range actions {
		switch a := action.(type) {
		case *scheduler.RunStep:
			v.flight, v.began, v.ends = a, now, now+v.takes(&a.Batch)
		case scheduler.Preempted:
			v.preempt++
		case scheduler.Refused:
			return fmt.Errorf("the scheduler refused request %d, reason %d", a.ID, a.Reason)
		case scheduler.Finished:
			if a.Reason == scheduler.Failed {
				return fmt.Errorf("request %d failed: %w", a.ID, a.Err)
			}
		}
	}
	return nil
}

func (v *virtual) takes(b *engine.Batch) time.Duration {
	d := v.device.Profile.Predict(workOf(b, nil))
	if v.device.Jitter > 0 {
		sigma := math.Sqrt(math.Log1p(v.device.Jitter * v.device.Jitter))
		d = time.Duration(float64(d) * math.Exp(sigma*v.random.NormFloat64()-sigma*sigma/2))
	}
	return max(d, 1) // time goes on
}

func planned(actions []scheduler.Action) *scheduler.RunStep {
	for _, action := range actions {
		if run, is := action.(*scheduler.RunStep); is {
			return run
		}
	}
	return nil
}

func decodesAlone(parts []scheduler.Part) bool {
	return !slices.ContainsFunc(parts, func(part scheduler.Part) bool { return part.Prompt })
}
