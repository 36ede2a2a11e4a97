package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/drive"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/measure"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/record"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/report"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/search"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/tail"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/target"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/workload"
	"github.com/tandem-serving/tandem/pkg/pace"
)

// Progress is told how far a benchmark is. It is called from one goroutine at a
// time and should return soon.
type Progress interface {
	// Begin: a run begins; what says which, total is how long requests are sent, 0 if
	// nobody knows.
	Begin(what string, total time.Duration)
	// Sample: the state of that run.
	Sample(record.Sample)
}

// describeTimeout bounds asking the server what it is.
const describeTimeout = 10 * time.Second

// Session measures one server, run after run. It is used by one goroutine.
type Session struct {
	cfg        Config
	objectives objectives
	target     target.Target
	server     target.Description
	progress   Progress
	runs       []*record.Run
	figures    []report.Figures
	warnings   []string
	sources    int // made so far
}

// NewSession asks the server what it is. The caller closes the target. What cfg says
// of rates does not matter here.
func NewSession(ctx context.Context, cfg Config, server target.Target, progress Progress) (*Session, error) {
	if err := cfg.ValidateRun(); err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, target: server, progress: progress}
	var err error
	if s.objectives, err = cfg.objectives(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	if s.server, err = server.Describe(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Step measures one rate in open loop and keeps the run.
func (s *Session) Step(ctx context.Context, what string, rate float64) (report.Figures, error) {
	if err := s.one(ctx, what, rate, 0); err != nil {
		return report.Figures{}, err
	}
	return s.figures[len(s.figures)-1], nil
}

// Last is the last run that was kept.
func (s *Session) Last() *record.Run { return s.runs[len(s.runs)-1] }

// one does one run and keeps it.
func (s *Session) one(ctx context.Context, what string, rate float64, concurrency int) error {
	run, err := s.drive(ctx, what, rate, concurrency, s.cfg.Warmup, s.length(rate))
	if err != nil {
		return err
	}
	summary := measure.Summarize(run, measure.Options{SLO: s.objectives.all, ClassSLO: s.objectives.classes})
	s.runs = append(s.runs, run)
	s.figures = append(s.figures, report.NewFigures(run, summary, tail.Explain(run, summary)))
	return nil
}

// length is how long requests are sent at a rate, 0: until the source ends.
func (s *Session) length(rate float64) time.Duration {
	switch {
	case s.cfg.Workload.OwnTimes() && !s.cfg.DurationSet:
		return 0
	case rate > 0:
		enough := time.Duration(float64(s.objectives.minRequests) / rate * float64(time.Second))
		return max(s.cfg.Duration, s.objectives.minDuration, enough)
	}
	return max(s.cfg.Duration, s.objectives.minDuration)
}

// drive does one run. Its requests end after warmup and length; length 0: with the
// source.
func (s *Session) drive(ctx context.Context, what string, rate float64, concurrency int, warmup, length time.Duration) (*record.Run, error) {
	total := warmup + length
	if length == 0 {
		total = 0
	}
	source, err := s.cfg.Workload.New(s.params(rate, concurrency, total))
	if err != nil {
		return nil, err
	}
	s.sources++
	if concurrency == 0 {
		rate = s.cfg.Workload.MeanRate(s.params(rate, 0, total)) // a ramp's is not its last
	}
	var timer pace.Timer
	if s.cfg.Timer != nil {
		timer = s.cfg.Timer()
	}
	s.progress.Begin(what, total)
	run, err := drive.Run(ctx, drive.Options{
		Target: s.target, Source: source, Offered: rate, Concurrency: concurrency,
		Warmup: warmup, Duration: length,
		RequestTimeout: s.cfg.RequestTimeout, DrainTimeout: s.cfg.DrainTimeout, InFlightLimit: s.cfg.InFlightLimit,
		Progress: s.progress.Sample, Timer: timer,
	})
	if warner, is := source.(workload.Warner); is {
		s.warnings = append(s.warnings, warner.Warnings()...)
	}
	if closer, is := source.(io.Closer); is {
		err = errors.Join(err, closer.Close())
	}
	return run, err
}

func (s *Session) params(rate float64, concurrency int, duration time.Duration) workload.Params {
	return workload.Params{
		Rate: rate, Concurrency: concurrency, Duration: duration, Step: s.sources,
		VocabularySize: s.server.VocabularySize, ContextTokens: s.server.ContextTokens,
		Text: s.server.TextOnly,
	}
}

// Outcome is the report of all runs that were kept, in rising order of rate; result
// is nil if there was no search.
func (s *Session) Outcome(result *search.Result) *Outcome {
	r := report.New(report.Invocation{
		Began: s.runs[0].Began, Target: s.server,
		Workload: s.cfg.Workload.Describe(s.params(s.cfg.Rate, s.cfg.Concurrency, s.length(s.cfg.Rate))),
	})
	r.Interrupted = s.Last().Interrupted
	if result != nil {
		r.SetSearch(*result, s.figures)
	} else {
		r.SetRun(s.figures[len(s.figures)-1])
	}
	for _, warning := range s.warnings {
		r.Warn(warning)
	}
	runs := slices.Clone(s.runs)
	slices.SortStableFunc(runs, func(a, b *record.Run) int { return cmp.Compare(a.Offered, b.Offered) })
	return &Outcome{Report: r, Runs: runs}
}

// SweepOutcome is the report of all runs that were kept, as one sweep.
func (s *Session) SweepOutcome() *Outcome {
	rates := make([]float64, len(s.figures))
	for i, f := range s.figures {
		rates[i] = f.Rate
	}
	sweep := search.NewSweep(rates)
	for i := range s.figures {
		sweep.Done(search.Step{Rate: rates[i], Summary: &s.figures[i].Summary})
	}
	result := sweep.Result()
	return s.Outcome(&result)
}

// number is a rate without needless digits.
func number(rate float64) string { return fmt.Sprintf("%.4g", rate) }
