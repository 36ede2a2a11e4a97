package loadtest

import (
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
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Config says what to measure. RegisterFlags fills it with defaults that work.
type Config struct {
	// Rate is offered in open loop, requests a second; 0: not asked for.
	Rate float64
	// Concurrency is kept in closed loop; 0: open loop.
	Concurrency int
	// Sweep is SweepAuto, or rates with commas between; empty: no sweep.
	Sweep string
	// FindMax searches for the highest rate that is stable and meets the SLO.
	FindMax bool
	// Preset names a scenario whose SLO and number of requests are used.
	Preset string
	// SLO is the objectives as text, ClassSLO those of classes: "NAME=TERMS".
	SLO      string
	ClassSLO []string
	// Duration is how long requests are due in one run, after Warmup, whose requests
	// do not count.
	Duration, Warmup time.Duration
	// MinRequests makes runs longer that would have fewer.
	MinRequests int
	// RequestTimeout bounds one request, DrainTimeout what is waited for at the end
	// of a run.
	RequestTimeout, DrainTimeout time.Duration
	// InFlightLimit is the most requests at one time.
	InFlightLimit int
	// Workload is what is sent.
	Workload workload.Spec
	// DurationSet: the user gave Duration; a trace is otherwise played to its end, and
	// a preset lasts as long as its rules want.
	DurationSet bool
	// WarmupSet: the user gave Warmup; a trace with times of its own has otherwise none,
	// since it may be shorter.
	WarmupSet bool
	// KeepRecords keeps the records of all runs for Outcome.Runs, as far as they take no
	// more memory than one run may; otherwise only those of the last.
	KeepRecords bool
	// Timer makes what waits for the moments at which requests are due; nil: the most
	// precise one. Tests on virtual time pass finetimer.Portable.
	Timer func() finetimer.Timer
	// workloadValid: Workload was validated, which reads its files.
	workloadValid bool
}

// DefaultConfig has the defaults of the flags. It lacks how much load: set Rate,
// Concurrency, Sweep, FindMax or Workload.Trace.
func DefaultConfig() Config {
	var c Config
	c.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return c
}

// SweepAuto asks for a sweep around the capacity, which is estimated first.
const SweepAuto = "auto"

// RegisterFlags adds all flags.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.Rate, "rate", 0, "open loop: requests per second")
	fs.IntVar(&c.Concurrency, "concurrency", 0, "closed loop: requests to keep running at a time")
	fs.StringVar(&c.Sweep, "sweep", "", "measure one rate after the other: --sweep around the server's capacity, or --sweep=1,2,4")
	fs.Lookup("sweep").NoOptDefVal = SweepAuto
	fs.BoolVar(&c.FindMax, "find-max", false, "find the highest stable rate that meets --slo, starting at --rate or half of the server's capacity; a step takes at most 20 minutes")
	c.RegisterRunFlags(fs)
}

// RegisterRunFlags adds the flags of a run and its workload, but for those that say
// at which rates.
func (c *Config) RegisterRunFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Preset, "preset", "", "SLO and number of requests of a scenario: "+search.PresetNames())
	fs.StringVar(&c.SLO, "slo", "", "latency objectives, such as ttft:p99<500ms,tpot:p99<30ms")
	fs.StringArrayVar(&c.ClassSLO, "class-slo", nil, "latency objectives of one class of requests: NAME=ttft:p99<200ms; repeat it for others")
	fs.DurationVar(&c.Duration, "duration", 30*time.Second, "how long to send requests in one run (default for a trace: to its end)")
	fs.DurationVar(&c.Warmup, "warmup", 3*time.Second, "warm-up before that, whose requests do not count (default for a trace with times: none)")
	fs.IntVar(&c.MinRequests, "min-requests", 0, "lengthen a run that would send fewer requests")
	fs.DurationVar(&c.RequestTimeout, "request-timeout", 2*time.Minute, "maximum time of one request")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "how long to wait for running requests at the end of a run")
	fs.IntVar(&c.InFlightLimit, "max-in-flight", drive.DefaultInFlightLimit, "maximum requests at one time; those due above it count as not sent")
	c.Workload.RegisterFlags(fs)
}

// maxRate bounds rates: more than any client sends, so a mistake.
const maxRate = 1e6

// Validate checks what can be checked without a server. Workload is read and checked
// once, so it stays as it is from then on.
func (c *Config) Validate() error {
	// First, since it finds out whether a trace has times.
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
		return fmt.Errorf("--rate: %v is outside 0 to %v requests a second", c.Rate, maxRate)
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
	case c.Duration <= 0 || c.Duration > 24*time.Hour:
		return fmt.Errorf("--duration: %v is outside 0s to 24h", c.Duration)
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

// rates are those of --sweep, nil for SweepAuto.
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

// objectives are the SLOs in force, and what a preset asks of a run's length.
type objectives struct {
	all         measure.SLO
	classes     map[string]measure.SLO
	minRequests int64
	minDuration time.Duration
	// stepRequests is how many requests a step of a search needs to be told by.
	stepRequests int64
}

func (c *Config) objectives() (objectives, error) {
	o := objectives{classes: map[string]measure.SLO{}, minRequests: int64(c.MinRequests)}
	if c.Preset != "" {
		preset, err := search.FindPreset(c.Preset)
		if err != nil {
			return o, fmt.Errorf("--preset: %w", err)
		}
		o.all, o.minRequests = preset.SLO, max(o.minRequests, preset.Requests)
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
	o.stepRequests = o.tellable(c.Workload.ClassShares())
	return o, nil
}

const (
	// leastRequests is what a verdict takes.
	leastRequests = 20
	// sloConfidence is that with which a percentile has to be told.
	sloConfidence = 0.95
	// maxStep is how long a step of a search lasts at most for the sake of its SLO, as
	// long as nobody asks for more; maxRun what nobody may ask for.
	maxStep = 20 * time.Minute
	maxRun  = 24 * time.Hour
)

// tellable is how many requests tell a verdict and every percentile of the SLOs, of
// classes by their share of the requests. Arrivals come by chance: it is so many that
// fewer than needed are due hardly ever. Gaps between tokens are always many more.
func (o objectives) tellable(shares map[string]float64) int64 {
	most := float64(leastRequests)
	need := func(slo measure.SLO, share float64) {
		for _, t := range slo.Terms {
			if t.Latency != "itl" && t.Percentile < 100 && share > 0 {
				most = max(most, float64(stats.QuantileNeeds(t.Percentile/100, sloConfidence))/share)
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
	const deviations = 4
	return int64(min(math.Ceil(most+deviations*math.Sqrt(most)), 1e12))
}

// warmup is how long requests do not count yet.
func (c *Config) warmup() time.Duration {
	if c.Workload.OwnTimes() && !c.WarmupSet {
		return 0
	}
	return c.Warmup
}

// length is how long requests are sent in one run at a rate, 0: until the source
// ends.
func (c *Config) length(o objectives, rate float64) (time.Duration, error) {
	if c.Workload.OwnTimes() && !c.DurationSet {
		return 0, nil
	}
	length := max(c.Duration, o.minDuration)
	if rate <= 0 {
		return length, nil
	}
	seconds := float64(o.minRequests) / rate
	if !(seconds <= maxRun.Seconds()) {
		return 0, fmt.Errorf("%d requests at %s a second take %.3g hours, more than the limit of %.0f: lower --min-requests or raise the rate",
			o.minRequests, number(rate), seconds/3600, maxRun.Hours())
	}
	return max(length, time.Duration(seconds*float64(time.Second))), nil
}

// stepLength is length for a step of a search: long enough to tell whether the SLO is
// met if that takes no more than most, and stretched by a factor within it.
func (c *Config) stepLength(o objectives, rate, stretch float64, most time.Duration) (time.Duration, error) {
	length, err := c.length(o, rate)
	if err != nil || length == 0 || rate <= 0 {
		return length, err
	}
	enough := max(float64(o.stepRequests)/rate, length.Seconds()) * max(stretch, 1)
	return max(length, time.Duration(min(enough, most.Seconds())*float64(time.Second))), nil
}
