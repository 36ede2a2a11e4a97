package loadtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Config is what to measure. RegisterFlags sets defaults that work.
type Config struct {
	// Rate offered in open loop, requests per second; 0: not set.
	Rate float64
	// Concurrency is how many requests a closed loop keeps running; 0: open loop.
	Concurrency int
	// Sweep is SweepAuto or comma-separated rates; empty: no sweep.
	Sweep string
	// FindMax searches for the highest rate that is stable and meets the SLO.
	FindMax bool
	// Preset names a scenario whose SLO and least duration are used.
	Preset string
	// SLO has the objectives as text; ClassSLO has those of classes, as "NAME=TERMS".
	SLO      string
	ClassSLO []string
	// Duration of sending in one run, after Warmup. Requests of Warmup do not count.
	Duration, Warmup time.Duration
	// MinRequests lengthens runs that would send fewer.
	MinRequests int
	// RequestTimeout of each request, and DrainTimeout at the end of a run.
	RequestTimeout, DrainTimeout time.Duration
	// InFlightLimit of concurrent requests.
	InFlightLimit int
	// Workload is what is sent.
	Workload workload.Spec
	// DurationSet: the user set Duration. Otherwise a trace plays to its end, and a
	// preset sets the duration.
	DurationSet bool
	// WarmupSet: the user set Warmup. Otherwise a trace with times has none, since the
	// whole trace may be shorter.
	WarmupSet bool
	// FirstStep numbers the first run (see workload.Params). What measures a server again passes the NextStep
	// of what measured it before, so that no prompt comes twice and is in a prefix cache.
	FirstStep int
	// KeepRecords keeps the records of all runs for Outcome.Runs, in the memory of one
	// run. Otherwise only the last run's are kept.
	KeepRecords bool
	// Timer creates timers for due times; nil: the most precise kind. Tests on virtual
	// time pass finetimer.Portable.
	Timer func() finetimer.Timer
	// Drive does each run; nil: drive.Run. A simulator's takes no more of the wall clock's
	// time than it computes.
	Drive func(context.Context, drive.Options) (*record.Run, error)
	// workloadValid: Workload was validated. That reads its files, so it happens once.
	workloadValid bool
}

// DefaultConfig has the flags' defaults. It lacks the load: set Rate, Concurrency, Sweep,
// FindMax or Workload.Trace.
func DefaultConfig() Config {
	var c Config
	c.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return c
}

// SweepAuto sweeps around the capacity, which is estimated first.
const SweepAuto = "auto"

// RegisterFlags registers all flags.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.Rate, "rate", 0, "open loop: requests per second")
	fs.IntVar(&c.Concurrency, "concurrency", 0, "closed loop: requests to keep running at a time")
	fs.StringVar(&c.Sweep, "sweep", "", "measure one rate after the other: --sweep around the server's capacity, or --sweep=1,2,4")
	fs.Lookup("sweep").NoOptDefVal = SweepAuto
	fs.BoolVar(&c.FindMax, "find-max", false, "find the highest stable rate that meets --slo, starting at --rate or half of the server's capacity")
	c.RegisterRunFlags(fs)
}

// RegisterRunFlags adds the flags of a run and its workload, without those that set rates.
func (c *Config) RegisterRunFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Preset, "preset", "", "SLO and least duration of a scenario: "+search.PresetNames())
	fs.StringVar(&c.SLO, "slo", "", "latency objectives, such as ttft:p99<500ms,tpot:p99<30ms")
	fs.StringArrayVar(&c.ClassSLO, "class-slo", nil, "latency objectives of one class of requests: NAME=ttft:p99<200ms; repeat it for others")
	fs.DurationVar(&c.Duration, "duration", 30*time.Second, "how long to send requests in one run (default for a trace: to its end). --sweep and --find-max stay longer at a rate until --slo has enough requests")
	fs.DurationVar(&c.Warmup, "warmup", 3*time.Second, "warm-up before that, whose requests do not count (default for a trace with times: none)")
	fs.IntVar(&c.MinRequests, "min-requests", 0, "lengthen a run that would send fewer requests")
	fs.DurationVar(&c.RequestTimeout, "request-timeout", 2*time.Minute, "maximum time of one request")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "how long to wait for running requests at the end of a run")
	fs.IntVar(&c.InFlightLimit, "max-in-flight", drive.DefaultInFlightLimit, "maximum requests at one time; those due above it count as not sent")
	c.Workload.RegisterFlags(fs)
}

// maxRate is more than any client can send, requests per second.
const maxRate = 1e6

// Validate checks everything that needs no server. It reads Workload's files, so Workload
// must not change afterwards.
func (c *Config) Validate() error {
	// First, since this detects whether a trace has times.
	if err := c.ValidateRun(); err != nil {
		return err
	}
	closed, searches := c.Concurrency != 0, c.Sweep != "" || c.FindMax
	switch {
	case closed && searches, c.Sweep != "" && c.FindMax:
		return errors.New("--concurrency, --sweep and --find-max exclude one another: pass one of them")
	case c.Rate != 0 && (closed || c.Sweep != ""):
		return errors.New("--rate goes with neither --concurrency nor --sweep: pass one of them")
	case !(c.Rate >= 0 && c.Rate <= maxRate):
		return fmt.Errorf("--rate: %v is outside what can be sent: pass more than 0, and at most %d requests a second", c.Rate, int(maxRate))
	case closed && c.Workload.Surges():
		return errors.New("--surge multiplies a rate, and --concurrency has none: leave out one of them")
	case closed && c.Workload.Arrival != workload.Poisson:
		return fmt.Errorf("--arrival %s is of an open loop, and --concurrency is a closed one: leave out one of them", c.Workload.Arrival)
	case closed && c.MinRequests > 0:
		return errors.New("--min-requests lengthens a run by its rate, and --concurrency has none: pass a longer --duration")
	case c.Concurrency < 0:
		return fmt.Errorf("--concurrency: %d is negative", c.Concurrency)
	case c.Concurrency > c.InFlightLimit:
		return fmt.Errorf("--concurrency %d is more than --max-in-flight %d allows: raise that, or keep fewer running", c.Concurrency, c.InFlightLimit)
	case c.Workload.OwnTimes() && (closed || searches || c.Rate != 0):
		return errors.New("the trace brings its own times: pass --speed instead of --rate, --concurrency, --sweep or --find-max")
	case !closed && !searches && c.Rate == 0 && !c.Workload.OwnTimes():
		return errors.New("say how much load: --rate R, --concurrency N, --sweep, --find-max or --trace FILE")
	case c.Workload.Arrival == workload.Ramp && searches:
		return errors.New("--arrival ramp passes through all rates in one run: leave it out with --sweep and --find-max, which measure one rate at a time")
	}
	rates, err := c.rates()
	if err != nil {
		return err
	}
	o, err := c.objectives()
	if err != nil {
		return err
	}
	for _, rate := range append(rates, c.Rate) {
		if _, err := c.length(o, rate); err != nil {
			return err
		}
	}
	return nil
}

// ValidateRun checks what RegisterRunFlags registers.
func (c *Config) ValidateRun() error {
	if !c.workloadValid {
		if err := c.Workload.Validate(); err != nil {
			return err
		}
		c.workloadValid = true
	}
	switch {
	case c.Duration <= 0:
		return fmt.Errorf("--duration: %v is not above 0", c.Duration)
	case c.Duration > 24*time.Hour:
		return fmt.Errorf("--duration: %v is above 24h", c.Duration)
	case c.Warmup < 0 || c.Warmup > time.Hour:
		return fmt.Errorf("--warmup: %v is outside 0s to 1h", c.Warmup)
	case c.MinRequests < 0:
		return fmt.Errorf("--min-requests: %d is negative", c.MinRequests)
	case c.RequestTimeout <= 0:
		return fmt.Errorf("--request-timeout: %v is not above 0", c.RequestTimeout)
	case c.DrainTimeout < 0:
		return fmt.Errorf("--drain-timeout: %v is negative", c.DrainTimeout)
	case c.InFlightLimit <= 0 || c.InFlightLimit > 1<<20:
		return fmt.Errorf("--max-in-flight: %d is outside 1 to %d", c.InFlightLimit, 1<<20)
	}
	_, err := c.objectives()
	return err
}

// ValidateUntimed is ValidateRun for a benchmark that sets the rates itself: it refuses a
// trace with times.
func (c *Config) ValidateUntimed() error {
	if err := c.ValidateRun(); err != nil {
		return err
	}
	if c.Workload.OwnTimes() {
		return errors.New("--trace brings its own times: draw lengths from it with --prompt-tokens empirical")
	}
	return nil
}

// rates of --sweep, nil for SweepAuto.
func (c *Config) rates() ([]float64, error) {
	if c.Sweep == SweepAuto || c.Sweep == "" {
		return nil, nil
	}
	rates, err := search.ParseRates(c.Sweep)
	if err != nil {
		return nil, fmt.Errorf("--sweep: %w", err)
	}
	return rates, nil
}

// objectives are the SLOs in force, and what a preset requires of a run's length.
type objectives struct {
	all         measure.SLO
	classes     map[string]measure.SLO
	minDuration time.Duration
	// A step of a search needs this many requests, because of needsFor: the verdict or a
	// percentile.
	needs    int64
	needsFor string
}

// Objective is the SLO of all requests whose class has none of its own: --slo or --preset's.
func (c *Config) Objective() (measure.SLO, error) {
	o, err := c.objectives()
	return o.all, err
}

func (c *Config) objectives() (objectives, error) {
	o := objectives{classes: map[string]measure.SLO{}}
	if c.Preset != "" {
		preset, err := search.FindPreset(c.Preset)
		if err != nil {
			return o, fmt.Errorf("--preset: %w", err)
		}
		o.all = preset.SLO
		if !c.DurationSet {
			o.minDuration = preset.MinDuration
		}
	}
	var err error
	if c.SLO != "" {
		if o.all, err = measure.ParseSLO(c.SLO); err != nil {
			return o, fmt.Errorf("--slo: %w", err)
		}
	}
	for _, class := range c.ClassSLO {
		name, terms, found := strings.Cut(class, "=")
		if !found || name == "" {
			return o, fmt.Errorf("--class-slo: %q is not NAME=TERMS, such as chat=ttft:p99<200ms", class)
		}
		if names := c.Workload.ClassNames(); !slices.Contains(names, name) {
			if len(names) == 0 {
				return o, fmt.Errorf("--class-slo %s: requests have no classes: add --class %s=WEIGHT, or pass --slo", name, name)
			}
			return o, fmt.Errorf("--class-slo: there is no class %q; there are %s", name, strings.Join(names, ", "))
		}
		if o.classes[name], err = measure.ParseSLO(terms); err != nil {
			return o, fmt.Errorf("--class-slo %s: %w", name, err)
		}
	}
	o.needs, o.needsFor = o.requestsNeeded(c.Workload.ClassShares())
	return o, nil
}

const (
	// maxStep bounds how far the SLO may lengthen a step of a search.
	maxStep = 20 * time.Minute
	// maxRun bounds what a user may ask for.
	maxRun = 24 * time.Hour
)

// requestsNeeded returns how many requests the verdict and every percentile of the SLOs
// need, and which of them needs the most. A class gets its share of the requests. Gaps
// between tokens are far more than requests, so ITL never needs the most.
func (o objectives) requestsNeeded(shares map[string]float64) (requests int64, what string) {
	most, what := float64(measure.MinRequests), "a verdict"
	need := func(slo measure.SLO, share float64) {
		for _, t := range slo.Terms {
			if t.Latency == "itl" || share <= 0 {
				continue
			}
			if n := float64(stats.QuantileNeeds(t.Percentile/100)) / share; n > most {
				most, what = n, t.Latency+":"+t.Quantile()
			}
		}
	}
	others := 1.0
	for name, slo := range o.classes {
		need(slo, shares[name])
		others -= shares[name]
	}
	if others > 1e-9 {
		need(o.all, others)
	}
	return int64(min(math.Ceil(most), 1e12)), what
}

// secondsNeeded is how long to send at a rate until a step has the requests that it needs.
// Arrivals are random: a margin of four standard deviations makes too few very rare.
func (o objectives) secondsNeeded(rate float64) float64 {
	const deviations = 4
	return (float64(o.needs) + deviations*math.Sqrt(float64(o.needs))) / rate
}

// warmup is the time at the start whose requests do not count.
func (c *Config) warmup() time.Duration {
	if c.Workload.OwnTimes() && !c.WarmupSet {
		return 0
	}
	return c.Warmup
}

// length is how long a run at a rate sends requests; 0: until the source ends.
func (c *Config) length(o objectives, rate float64) (time.Duration, error) {
	if c.Workload.OwnTimes() && !c.DurationSet {
		return 0, nil
	}
	length := max(c.Duration, o.minDuration)
	rate = c.Workload.MeanRate(workload.Params{Rate: rate})
	if rate <= 0 {
		return length, nil
	}
	seconds := float64(c.MinRequests) / rate
	if !(seconds <= maxRun.Seconds()) {
		return 0, fmt.Errorf("%d requests at %s a second take %.3g hours, more than the limit of %.0f: lower --min-requests or raise the rate",
			c.MinRequests, number(rate), seconds/3600, maxRun.Hours())
	}
	return max(length, time.Duration(seconds*float64(time.Second))), nil
}

// Sends is how long each run sends requests at least, warm-up included; 0: until the source
// ends. Validate comes first.
func (c *Config) Sends() time.Duration {
	rate := c.Rate
	if c.FindMax {
		rate = 0 // where the search begins
	}
	o, err := c.objectives()
	if err != nil {
		return 0
	}
	length, err := c.length(o, rate)
	if err != nil || length == 0 {
		return 0
	}
	return c.warmup() + length
}

// stepLength is length for a step of a search: long enough to check the SLO, times
// stretch, but not lengthened beyond most.
func (c *Config) stepLength(o objectives, rate, stretch float64, most time.Duration) (time.Duration, error) {
	length, err := c.length(o, rate)
	if err != nil || length == 0 || rate <= 0 {
		return length, err
	}
	needed := max(o.secondsNeeded(rate), length.Seconds()) * max(stretch, 1)
	return max(length, time.Duration(min(needed, most.Seconds())*float64(time.Second))), nil
}
