package latencybudget

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// Config declares how long requests may take, and how far back is measured
// what they took.
type Config struct {
	// Declared is the budget; what is 0 is not declared.
	Declared latency.Budget
	// Window is how far back spent times are kept.
	Window time.Duration
}

// DefaultConfig declares nothing.
func DefaultConfig() Config { return Config{Window: 5 * time.Minute} }

// RegisterFlags adds the flags, each name after prefix, and with them the defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	*c = DefaultConfig()
	add := func(value *time.Duration, name, usage string) {
		fs.DurationVar(value, prefix+strings.ReplaceAll(name, "_", "-"), *value, "latency budget: "+usage+" (default: none)")
	}
	for stage, usage := range [api.NumStages]string{
		"checking a request and turning its text into tokens", "attempts in which a worker failed", "waiting for workers and in the worker's queue", "choosing the workers",
		"reserving KV blocks", "computing the prompt", "the exposed part of the KV transfer", "decoding, for each token after the first",
	} {
		add(&c.Declared.Stages[stage], api.Stage(stage).String(), usage)
	}
	for total, usage := range [latency.NumTotals]string{"time to the first token", "time for each token after the first", "the whole request"} {
		add(&c.Declared.Totals[total], latency.Total(total).String(), usage)
	}
	fs.DurationVar(&c.Window, prefix+"window", c.Window, "window over which latencies are compared with the budget")
}

// Validate checks ranges and that stages fit into their totals. Its error begins
// with a flag's name.
func (c Config) Validate() error {
	if c.Window < time.Second || c.Window > 24*time.Hour {
		return fmt.Errorf("budget-window is %v: it must be from 1s to 24h", c.Window)
	}
	return c.Declared.Validate()
}

// SpentOf is the budget of a response in the form that it is compared in.
func SpentOf(t *inferencev1.Timings, tokens int) *latency.Spent {
	return &latency.Spent{
		Stages: api.StagesOf(t),
		TTFT:   time.Duration(t.GetTtftNs()), TPOT: time.Duration(t.GetTpotNs()), E2E: time.Duration(t.GetTotalNs()), Tokens: tokens,
	}
}

// Spending is what the requests of the last while spent of their budget. It is a
// Prometheus collector, and safe for concurrent use.
type Spending struct {
	config   Config
	stages   [api.NumStages]*latency.Window // StageDecode: per token
	totals   [latency.NumTotals]*latency.Window
	second   *latency.Window
	fetch    *latency.Window // part of StagePrefill, of the requests that had it
	gaps     *latency.Window // of all requests, token by token
	counts   *latency.Counts // of the kinds below
	breaches [api.NumStages]prometheus.Counter
}

// Kinds of events that are counted beside the windows; then those of each stage
// and of each total.
const (
	countFinished = iota
	countFailed
	countBroken
	countStages
	countTotals = countStages + int(api.NumStages)
	countKinds  = countTotals + int(latency.NumTotals)
)

// NewSpending returns one that has seen no request and is shown in metrics; a nil
// registerer shows it to nobody.
func NewSpending(config Config, registerer prometheus.Registerer) (*Spending, error) {
	set := metricset.New(registerer)
	breaches := newBreaches(set)
	length := config.Window
	s := &Spending{
		config: config,
		second: latency.NewWindow(length),
		fetch:  latency.NewWindow(length),
		gaps:   latency.NewWindow(length),
		counts: latency.NewCounts(length, countKinds),
	}
	for stage := range s.stages {
		s.stages[stage] = latency.NewWindow(length)
		s.breaches[stage] = breaches.WithLabelValues(api.Stage(stage).String())
	}
	for total := range s.totals {
		s.totals[total] = latency.NewWindow(length)
	}
	set.Add(s)
	return s, set.Err()
}

// Gap takes in the time between two tokens.
func (s *Spending) Gap(now time.Time, took time.Duration) { s.gaps.Record(now, took) }

// Failed counts a request that did not end well.
func (s *Spending) Failed(now time.Time) { s.counts.Add(now, countFailed) }

// Finished takes in a request that ended well; second and fetch are its times to
// the second token and of fetching blocks, 0 if it had none.
func (s *Spending) Finished(now time.Time, spent *latency.Spent, second, fetch time.Duration) {
	for stage := range api.NumStages {
		if took, ok := stageTime(stage, spent); ok {
			s.stages[stage].Record(now, took)
		}
	}
	s.totals[latency.TotalTTFT].Record(now, spent.TTFT)
	s.totals[latency.TotalE2E].Record(now, spent.E2E)
	if spent.Tokens > 1 {
		s.totals[latency.TotalTPOT].Record(now, spent.TPOT)
		s.second.Record(now, second)
	}
	if fetch > 0 {
		s.fetch.Record(now, fetch)
	}
	s.counts.Add(now, countFinished)
	breach, broken := s.config.Declared.Check(spent)
	if !broken {
		return
	}
	s.breaches[breach.Stage].Inc()
	s.counts.Add(now, countBroken)
	s.counts.Add(now, countStages+int(breach.Stage))
	for total, exceeded := range breach.Exceeded {
		if exceeded {
			s.counts.Add(now, countTotals+total)
		}
	}
}

// stageTime is what a request spent on a stage, in the unit that it is declared
// in: decode per token after the first, of which there has to be one.
func stageTime(stage api.Stage, spent *latency.Spent) (time.Duration, bool) {
	took := spent.Stages[stage]
	if stage != api.StageDecode {
		return took, true
	}
	if spent.Tokens < 2 {
		return 0, false
	}
	return took / time.Duration(spent.Tokens-1), true
}

// partFetch is the name of what budget and metrics show beside the stages.
const partFetch = "fetch"
