// Package modes compares aggregated and disaggregated serving and mode auto, at equal
// cores: the capacity of each for several mixes of requests, or their latencies at given
// rates.
//
// Commands import it. Its goroutines and processes are those of package contenders.
package modes

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/loadtest"
)

// Names of the contenders, in their order.
const (
	Aggregated    = "aggregated"
	Disaggregated = "disaggregated"
	Auto          = "auto"
)

// Options describe the comparison.
type Options struct {
	// Load is the traffic. A mix overrides its lengths.
	Load  loadtest.Config
	Mixes []Mix
	// Rates to measure instead of a search: nil for a search, and those around the capacity if empty.
	Rates []float64
	// TTFTScale and TPOTScale make the objective of a mix if Load has no SLO: multiples of
	// the first contender's latencies for one request at a time.
	TTFTScale, TPOTScale float64
	// Send the objective to the router with each request.
	Send   bool
	Rounds int
	// Workers of each contender.
	Workers int
}

// Run measures three contenders: aggregated, disaggregated and auto. If ctx ends, it returns what was
// measured until then, or contenders.ErrInterrupted if no mix has a round. Another error comes with what was
// measured before it.
func Run(ctx context.Context, three []contenders.Contender, o Options, progress loadtest.Progress) (*Result, error) {
	result := &Result{Workers: o.Workers, Rounds: max(o.Rounds, 1), Mixes: []Mixed{}}
	err := contenders.Use(ctx, three, func(set *contenders.Set) error {
		for i, mix := range o.Mixes {
			if err := result.add(ctx, set, mix, o, uint64(i), progress); err != nil {
				result.Interrupted = true
				if ctx.Err() != nil && len(result.Mixes) > 0 {
					return nil
				}
				return fmt.Errorf("mix %s: %w", mix.Name, err)
			}
			if result.Interrupted {
				return nil
			}
		}
		return nil
	})
	return result, err
}

// add measures a mix. An error comes after what was measured of it is in r.
func (r *Result) add(ctx context.Context, set *contenders.Set, mix Mix, o Options, number uint64, progress loadtest.Progress) error {
	load, err := loadOf(mix, o.Load, number)
	if err != nil {
		return err
	}
	if progress != nil {
		progress = contenders.Named{Progress: progress, Name: mix.Name}
	}
	idle := loadtest.Idle{}
	if o.Rates == nil || load.SLO == "" && load.Preset == "" {
		if idle, err = set.Idle(ctx, load, progress); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return contenders.ErrInterrupted
		}
	}
	if load.SLO == "" && load.Preset == "" {
		load.SLO = objective(idle, o.TTFTScale, o.TPOTScale)
	}
	slo, err := load.Objective()
	if err != nil {
		return err
	}
	carry := contenders.Bounds{}
	if o.Send {
		carry.TTFT, carry.TPOT = slo.Bound("ttft"), slo.Bound("tpot")
	}
	if o.Rates != nil {
		rates := o.Rates
		if len(rates) == 0 {
			rates = nil
		}
		result, err := set.AtRates(ctx, contenders.Options{Load: load, Carry: carry, Rates: rates, Rounds: o.Rounds}, progress)
		if result != nil {
			r.Rates, r.Interrupted = result, result.Interrupted
			r.Mixes = append(r.Mixes, atRates(mix.Name, slo.String(), result))
		}
		return err
	}
	if load.MinRequests == 0 {
		load.MinRequests = leastRequests
	}
	// Begin with the rate at which workers complete requests one at a time.
	start := float64(o.Workers) / max(idle.E2E, time.Millisecond).Seconds()
	found, err := set.Capacities(ctx, contenders.CapacityOptions{Load: load, Carry: carry, Start: start, Rounds: o.Rounds}, progress)
	if found != nil {
		r.Interrupted = found.Interrupted
		r.Mixes = append(r.Mixes, searched(mix.Name, slo.String(), found))
	}
	return err
}

// leastRequests is the default for the requests of a search step. Fewer would make the share
// of good ones too coarse.
const leastRequests = 50

// loadOf is a load with the traffic of a mix.
func loadOf(mix Mix, load loadtest.Config, number uint64) (loadtest.Config, error) {
	if mix.set != nil {
		if err := mix.set(&load.Workload); err != nil {
			return load, err
		}
	}
	if load.Workload.Seed > 0 { // so that no mix finds the prompts of another in a cache
		load.Workload.Seed += number
	}
	err := load.ValidateUntimed()
	return load, err
}

// Check returns what is wrong with a load and its mixes.
func Check(load loadtest.Config, mixes []Mix) error {
	for _, mix := range mixes {
		if _, err := loadOf(mix, load, 0); err != nil {
			return err
		}
	}
	return nil
}

// objective is a multiple of an idle mesh's latencies, to two digits.
func objective(idle loadtest.Idle, ttft, tpot float64) string {
	terms := []string{"ttft:p90<" + bound(idle.TTFT, ttft).String()}
	if idle.TPOT > 0 {
		terms = append(terms, "tpot:p90<"+bound(idle.TPOT, tpot).String())
	}
	return strings.Join(terms, ",")
}

func bound(idle time.Duration, scale float64) time.Duration {
	exact := max(float64(idle)*scale, float64(time.Microsecond))
	unit := math.Pow(10, math.Floor(math.Log10(exact))-1)
	return time.Duration(math.Round(exact/unit) * unit)
}
