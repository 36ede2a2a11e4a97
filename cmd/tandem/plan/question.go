package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// Question is what to plan for.
type Question struct {
	// Load is what comes: its rate or trace, lengths and SLO. It is valid.
	Load loadtest.Config
	// Cluster has the model, network and routers, and one worker of each pool that all
	// others are like. It has no events and does not scale.
	Cluster *scenario.Scenario
	// Mode and SLO that requests ask for; 0: no bound.
	Mode       inferencev1.Mode
	TTFT, TPOT time.Duration
	Headroom   Headroom
	// WorkerPrice is what a worker costs an hour, in any currency; 0: not known.
	WorkerPrice float64
	// MaxWorkers is the most that there may be.
	MaxWorkers int
}

// Validate checks what Load and Headroom do not check themselves.
func (q *Question) Validate() error {
	slo, err := q.Load.Objective()
	switch {
	case err != nil:
		return err
	case len(slo.Terms) == 0:
		return errors.New("--slo: a plan needs an objective, such as ttft:p99<500ms,tpot:p99<30ms")
	case !(q.WorkerPrice >= 0 && q.WorkerPrice <= mostPrice):
		return fmt.Errorf("--worker-price: %v is outside 0 to %.0e, for an hour", q.WorkerPrice, float64(mostPrice))
	case q.MaxWorkers < 1 || q.MaxWorkers > mostWorkers:
		return fmt.Errorf("--max-workers: %d is outside 1 to %d", q.MaxWorkers, mostWorkers)
	}
	return q.Headroom.Validate()
}

// mostPrice bounds WorkerPrice: sums of it are finite.
const mostPrice = 1e12

// mostWorkers bounds MaxWorkers: a simulation of more takes long.
const mostWorkers = 1000

// terms are those on a latency, the highest percentile first.
func terms(slo measure.SLO, latency string) []measure.Term {
	found := slices.DeleteFunc(slices.Clone(slo.Terms), func(t measure.Term) bool { return t.Latency != latency })
	slices.SortFunc(found, func(a, b measure.Term) int { return cmp.Compare(b.Percentile, a.Percentile) })
	return found
}

// quantile of a term, below 1: the maximum counts as one in ten thousand.
func quantile(t measure.Term) float64 { return min(t.Percentile/100, 0.9999) }
