package plan

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/pkg/queueing"
)

// Headroom is what a plan keeps free for what its load does not show.
type Headroom struct {
	// Utilisation is the highest of a pool, as a share of what it can serve within the SLO.
	Utilisation float64
	// Burst is how many times the rate may come for BurstLength. What then waits is served
	// within BurstDrain.
	Burst                   float64
	BurstLength, BurstDrain time.Duration
	// Deviations is by how many standard deviations the number of answers in progress may
	// exceed its mean before the SLO or memory limits it.
	Deviations float64
	// FanOut is how many calls a user waits for at once: the SLO is about the slowest.
	FanOut int
}

// RegisterFlags adds the flags, with defaults that work.
func (h *Headroom) RegisterFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&h.Utilisation, "max-utilisation", 0.85, "highest utilisation of a pool, as a share of what it can serve within the SLO")
	fs.Float64Var(&h.Burst, "burst", 2, "multiple of the rate that may come for --burst-length; 1: no bursts beyond those of the arrivals")
	fs.DurationVar(&h.BurstLength, "burst-length", time.Second, "how long a burst lasts")
	fs.DurationVar(&h.BurstDrain, "burst-drain", 5*time.Second, "how long after a burst what waits may take to be served")
	fs.Float64Var(&h.Deviations, "deviations", 2, "margin for variance: standard deviations by which the answers in progress may exceed their mean")
	fs.IntVar(&h.FanOut, "fan-out", 1, "calls that a user waits for at once: --slo is then about the slowest of them")
}

// Validate checks ranges.
func (h *Headroom) Validate() error {
	switch {
	case !(h.Utilisation > 0 && h.Utilisation < 1):
		return fmt.Errorf("--max-utilisation: %v must be above 0 and below 1", h.Utilisation)
	case !(h.Burst >= 1 && h.Burst <= 1000):
		return fmt.Errorf("--burst: %v is outside 1 to 1000", h.Burst)
	case h.BurstLength < 0 || h.BurstLength > time.Hour:
		return fmt.Errorf("--burst-length: %v is outside 0s to 1h", h.BurstLength)
	case h.BurstDrain <= 0 || h.BurstDrain > time.Hour:
		return fmt.Errorf("--burst-drain: %v must be above 0s, and at most 1h", h.BurstDrain)
	case !(h.Deviations >= 0 && h.Deviations <= 10):
		return fmt.Errorf("--deviations: %v is outside 0 to 10", h.Deviations)
	case h.FanOut < 1 || h.FanOut > 1000:
		return fmt.Errorf("--fan-out: %d is outside 1 to 1000", h.FanOut)
	}
	return nil
}

// burstUtilisation is the highest utilisation u at which a burst is served in time. Of each
// second of capacity it brings u·Burst of work: (u·Burst−1)·BurstLength is left to wait, and is
// done within BurstDrain with what is then free, 1−u.
func (h *Headroom) burstUtilisation() float64 {
	length, drain := h.BurstLength.Seconds(), h.BurstDrain.Seconds()
	return (length + drain) / (h.Burst*length + drain)
}

// ofEach is the SLO that each of FanOut calls keeps.
func (h *Headroom) ofEach(slo measure.SLO) (measure.SLO, error) {
	if h.FanOut == 1 {
		return slo, nil
	}
	var each measure.SLO
	for _, t := range slo.Terms {
		if t.Percentile < 100 {
			q, err := queueing.FanOut(t.Percentile/100, h.FanOut)
			if err != nil {
				return slo, err
			}
			if q > highestQuantile {
				return slo, fmt.Errorf("--fan-out: for the %s of %d calls each needs its p%.6g, for which simulations are too short: pass fewer calls, or a lower percentile in --slo", t.Quantile(), h.FanOut, 100*q)
			}
			t.Percentile = math.Round(1e5*q) / 1e3
		}
		each.Terms = append(each.Terms, t)
	}
	return each, nil
}

// ofCalls says after an SLO of ofEach whose it is.
func (h *Headroom) ofCalls() string {
	if h.FanOut == 1 {
		return ""
	}
	return fmt.Sprintf(" of each of %d calls", h.FanOut)
}

// highestQuantile is the highest that a simulation shows: it takes 46,000 requests.
const highestQuantile = 0.99991

// runningMean is the mean number that runs if the mean and its margin are at most limit: the
// number varies as a Poisson variable, by the square root of its mean.
func (h *Headroom) runningMean(limit float64) float64 {
	root := (math.Sqrt(h.Deviations*h.Deviations+4*limit) - h.Deviations) / 2
	return root * root
}
