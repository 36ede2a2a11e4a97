package simulated

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// Trouble is what can be asked to go wrong. The same seed and the same steps have
// the same trouble. The zero value is none.
type Trouble struct {
	// Seed of everything that is drawn.
	Seed uint64
	// Jitter is the spread of the steps' times: each is multiplied by a number of
	// mean 1 and this standard deviation, drawn from a log-normal distribution.
	Jitter float64
	// Slow is by how much everything takes longer; 0 is 1.
	Slow float64
	// FailProbability is that of a step to fail, after its time has passed.
	FailProbability float64
	// Stalls are times in which the device stands still. They may overlap.
	Stalls []Stall
	// Dies is whether the device is lost DiesAt after New: steps that run then
	// fail, and all later ones at once.
	Dies   bool
	DiesAt time.Duration
}

// Stall is a time, from New on, in which a device computes nothing.
type Stall struct{ At, For time.Duration }

// MaxSlow bounds Trouble.Slow in both directions.
const MaxSlow = 1e4

// Validate checks ranges.
func (t Trouble) Validate() error {
	switch {
	case !(t.Jitter >= 0 && t.Jitter <= latency.MaxJitter): // so that NaN is refused too
		return fmt.Errorf("jitter %v is outside 0 to %d", t.Jitter, latency.MaxJitter)
	case t.Slow != 0 && !(t.Slow >= 1/MaxSlow && t.Slow <= MaxSlow):
		return fmt.Errorf("factor %v is outside %v to %v", t.Slow, 1/MaxSlow, MaxSlow)
	case !(t.FailProbability >= 0 && t.FailProbability <= 1):
		return fmt.Errorf("probability %v is outside 0 to 1", t.FailProbability)
	case t.DiesAt < 0:
		return fmt.Errorf("time %v is negative", t.DiesAt)
	}
	for _, s := range t.Stalls {
		if s.At < 0 || s.For <= 0 {
			return fmt.Errorf("a stall at %v for %v: the time must not be negative, and the length must be above 0", s.At, s.For)
		}
	}
	return nil
}

// errDevice is a failure that was asked for.
var errDevice = errors.New("the simulated device failed, as it was asked to")

// misfortune is Trouble as it happens. One goroutine uses it.
type misfortune struct {
	trouble Trouble
	began   time.Time
	chance  *rand.Rand
	sigma   float64 // of the logarithm of a step's factor
}

func newMisfortune(t Trouble) *misfortune {
	t.Stalls = apart(t.Stalls)
	t.Slow = cmp.Or(t.Slow, 1)
	return &misfortune{
		trouble: t, began: time.Now(),
		chance: rand.New(rand.NewPCG(t.Seed, 0x74616e64656d)),
		// A log-normal variable of mean 1 has the variance exp(σ²) − 1.
		sigma: math.Sqrt(math.Log1p(t.Jitter * t.Jitter)),
	}
}

// apart is the same times, rising and with something between any two: where stalls
// overlap the device stands still once.
func apart(stalls []Stall) []Stall {
	var all []Stall
	for _, s := range slices.SortedFunc(slices.Values(stalls), func(a, b Stall) int { return cmp.Compare(a.At, b.At) }) {
		if n := len(all); n > 0 && s.At-all[n-1].At <= all[n-1].For {
			all[n-1].For = max(all[n-1].For, s.At-all[n-1].At+s.For)
		} else {
			all = append(all, s)
		}
	}
	return all
}

// duration is what a step takes that should take d, and whether it fails. Both are
// drawn for every step, so that one option does not change another's draws.
func (m *misfortune) duration(d time.Duration) (takes time.Duration, fails bool) {
	// Not math.Exp, whose last digit depends on whether the processor has FMA.
	factor := math.Exp2(math.Log2E * (m.sigma*m.chance.NormFloat64() - m.sigma*m.sigma/2))
	fails = m.chance.Float64() < m.trouble.FailProbability
	return time.Duration(float64(d) * factor * m.trouble.Slow), fails
}

// after is when work of length d is done that begins at a time, the stalls
// counted in.
func (m *misfortune) after(begin time.Time, d time.Duration) time.Time {
	end := begin.Add(d)
	for _, s := range m.trouble.Stalls {
		from := m.began.Add(s.At)
		to := from.Add(s.For)
		switch {
		case !begin.Before(to), from.After(end), d > 0 && from.Equal(end):
		case begin.Before(from):
			end = end.Add(s.For)
		default: // it begins in the stall
			end = end.Add(to.Sub(begin))
		}
	}
	return end
}

// dead is whether the device is lost at a time.
func (m *misfortune) dead(at time.Time) bool {
	return m.trouble.Dies && !at.Before(m.began.Add(m.trouble.DiesAt))
}
