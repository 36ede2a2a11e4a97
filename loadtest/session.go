package loadtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Progress is told how far a benchmark is. It is called from one goroutine at a
// time and should return soon.
type Progress interface {
	// Plan: a search begins; its runs are the next ones that begin.
	Plan(Plan)
	// Begin: a run begins. what names it, total is how long it sends requests, 0 if
	// unknown.
	Begin(what string, total time.Duration)
	// Sample: the state of the current run.
	Sample(record.Sample)
}

// Session measures one server in successive runs. Not for concurrent use.
type Session struct {
	cfg        Config
	objectives objectives
	client     client.Client
	server     client.Description
	progress   Progress // may be nil
	began      time.Time
	last       *record.Run
	// runs with kept records, and their memory, bytes.
	runs     []*record.Run
	sizes    []int64
	figures  []report.Figures
	warnings []string
	// changed is what the runs' sources had to change.
	changed []workload.Warning
	next    int             // step of the next run
	repeats map[float64]int // runs so far by rate
	round   *int            // instead of repeats
	// interrupted: it ended between two requested runs.
	interrupted bool
}

// keptMost bounds the kept records' memory, bytes. Another run needs the rest of the limit.
const keptMost = drive.DefaultMemoryLimit / 2

// NewSession asks the server what it is. The caller closes the client. cfg's rates are
// ignored. progress may be nil.
func NewSession(ctx context.Context, cfg Config, server client.Client, progress Progress) (*Session, error) {
	if err := cfg.ValidateRun(); err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, client: server, progress: progress, next: cfg.FirstStep, repeats: map[float64]int{}}
	var err error
	if s.objectives, err = cfg.objectives(); err != nil {
		return nil, err
	}
	if s.server, err = server.Describe(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Round gives all runs from now on the arrivals, lengths and classes of a number, from 0,
// whatever ran at their rates before.
func (s *Session) Round(number int) { s.round = &number }

// Step measures one rate in open loop and keeps the run.
func (s *Session) Step(ctx context.Context, what string, rate float64) (report.Figures, error) {
	length, err := s.cfg.length(s.objectives, rate)
	if err == nil {
		err = s.one(ctx, what, rate, 0, length)
	}
	if err != nil {
		return report.Figures{}, err
	}
	return s.figures[len(s.figures)-1], nil
}

// Planned is the plan of Step at a rate.
func (s *Session) Planned(rate float64) (PlannedStep, error) {
	length, err := s.cfg.length(s.objectives, rate)
	return PlannedStep{Rate: rate, Length: s.cfg.warmup() + length}, err
}

// NextStep is Config.FirstStep for what measures the server next.
func (s *Session) NextStep() int { return s.next }

// Last is the last run, nil before the first and if the last could not run.
func (s *Session) Last() *record.Run { return s.last }

// one does one run and keeps its figures.
func (s *Session) one(ctx context.Context, what string, rate float64, concurrency int, length time.Duration) error {
	s.dropRecords()
	run, err := s.drive(ctx, what, rate, concurrency, s.cfg.warmup(), length)
	if err != nil {
		return err
	}
	summary := measure.Summarize(run, measure.Options{SLO: s.objectives.all, ClassSLO: s.objectives.classes})
	if len(s.figures) == 0 {
		s.began = run.Began
	}
	s.last, s.runs, s.sizes = run, append(s.runs, run), append(s.sizes, drive.Size(run))
	s.figures = append(s.figures, report.NewFigures(run, summary, tail.Explain(run, summary)))
	return nil
}

// dropRecords frees records before the next run: all unless KeepRecords is set, otherwise
// the oldest beyond the limit.
func (s *Session) dropRecords() {
	s.last = nil
	if !s.cfg.KeepRecords {
		s.runs, s.sizes = nil, nil
	}
	for s.kept() > keptMost {
		s.warnings = append(s.warnings, fmt.Sprintf("the records of all runs took more than %d MiB: those of a run at %s were not kept", keptMost>>20, perSecond(s.runs[0].Offered)))
		s.runs, s.sizes = slices.Delete(s.runs, 0, 1), slices.Delete(s.sizes, 0, 1)
	}
}

// kept is the memory of the kept records, bytes.
func (s *Session) kept() int64 {
	total := int64(0)
	for _, size := range s.sizes {
		total += size
	}
	return total
}

// drive does one run of warmup and length; length 0: until the source ends.
func (s *Session) drive(ctx context.Context, what string, rate float64, concurrency int, warmup, length time.Duration) (*record.Run, error) {
	total := warmup + length
	if length == 0 {
		total = 0
	}
	params := s.params(rate, concurrency, total)
	if s.cfg.Workload.OwnTimes() {
		// The run then ends by time, not by the source, and can tell the difference.
		params.Duration = 0
	}
	source, err := s.cfg.Workload.New(params)
	if err != nil {
		return nil, err
	}
	s.next++
	s.repeats[rate]++
	if concurrency == 0 {
		rate = s.cfg.Workload.MeanRate(params) // a ramp's Rate is its last
	}
	var timer finetimer.Timer
	if s.cfg.Timer != nil {
		timer = s.cfg.Timer()
	}
	var sampled func(record.Sample)
	if s.progress != nil {
		s.progress.Begin(what, total)
		sampled = s.progress.Sample
	}
	runs := s.cfg.Drive
	if runs == nil {
		runs = drive.Run
	}
	run, err := runs(ctx, drive.Options{
		Client: s.client, Source: source, Offered: rate, Concurrency: concurrency,
		Warmup: warmup, Duration: length, Lasts: s.cfg.Workload.Trace == "",
		RequestTimeout: s.cfg.RequestTimeout, DrainTimeout: s.cfg.DrainTimeout, InFlightLimit: s.cfg.InFlightLimit,
		MemoryLimit: max(drive.DefaultMemoryLimit-s.kept(), keptMost),
		Progress:    sampled, Timer: timer,
	})
	if warner, is := source.(workload.Warner); is {
		s.warn(warner.Warnings())
	}
	if closer, is := source.(io.Closer); is {
		err = errors.Join(err, closer.Close())
	}
	return run, err
}

// warn merges a source's warnings with earlier ones.
func (s *Session) warn(warnings []workload.Warning) {
	for _, w := range warnings {
		i := slices.IndexFunc(s.changed, func(other workload.Warning) bool { return other.Text == w.Text })
		if i < 0 {
			s.changed = append(s.changed, w)
			continue
		}
		s.changed[i].Count += w.Count
		s.changed[i].Of += w.Of
	}
}

func (s *Session) params(rate float64, concurrency int, duration time.Duration) workload.Params {
	repeat := s.repeats[rate]
	if s.round != nil {
		repeat = *s.round
	}
	return workload.Params{
		Rate: rate, Concurrency: concurrency, Duration: duration, Step: s.next, Repeat: repeat,
		VocabularySize: s.server.VocabularySize, ContextTokens: s.server.ContextTokens,
		Text: s.server.TextOnly,
	}
}

// Outcome is the report of all runs, in rising order of rate; result is nil if there
// was no search.
func (s *Session) Outcome(result *search.Result) *Outcome {
	length := time.Duration(0)
	if result == nil {
		length, _ = s.cfg.length(s.objectives, s.cfg.Rate) // was checked before the run
	}
	r := report.New(s.began, s.server, s.cfg.Workload.Describe(s.params(s.cfg.Rate, s.cfg.Concurrency, length)))
	if result != nil {
		r.Workload = append(r.Workload, s.lengths())
	}
	r.Interrupted = s.interrupted || s.last != nil && s.last.Interrupted
	if result != nil {
		r.SetSearch(*result, s.figures)
	} else {
		r.SetRun(s.figures[len(s.figures)-1])
	}
	for _, warning := range s.warnings {
		r.Warn(warning)
	}
	for _, warning := range s.changed {
		r.Warn(warning.String())
	}
	runs := slices.Clone(s.runs)
	slices.SortStableFunc(runs, func(a, b *record.Run) int { return cmp.Compare(a.Offered, b.Offered) })
	return &Outcome{Report: r, Runs: runs, NextStep: s.next}
}

// lengths says how long requests were really sent, at the whole steps of a search or in
// the only run.
func (s *Session) lengths() string {
	whole := s.figures
	if n := len(whole) - 1; n > 0 && s.last != nil && s.last.Interrupted {
		whole = whole[:n]
	}
	shortest, longest := whole[0].WindowS, whole[0].WindowS
	for _, f := range whole {
		shortest, longest = min(shortest, f.WindowS), max(longest, f.WindowS)
	}
	text := fmt.Sprintf("each rate was sent for %.3g s", shortest)
	if longest-shortest >= 0.5 {
		text += fmt.Sprintf(" to %.3g s", longest)
	}
	return text + fmt.Sprintf(", after a warm-up of %v", s.cfg.warmup())
}

// SweepOutcome is the report of all runs, as one sweep.
func (s *Session) SweepOutcome() *Outcome {
	rates := make([]float64, len(s.figures))
	for i, f := range s.figures {
		rates[i] = f.Rate
	}
	sweep := search.NewSweep(rates)
	for i := range s.figures {
		sweep.Done(s.step(i))
	}
	result := sweep.Result()
	return s.Outcome(&result)
}

// step converts a run to a search's step.
func (s *Session) step(i int) search.Step {
	f := &s.figures[i]
	step := search.Step{Rate: f.Rate, Summary: &f.Summary, Client: f.Limit()}
	if i == len(s.figures)-1 && s.last != nil && s.last.Interrupted { // only the last can be
		step.Interrupted, step.Why = true, fmt.Sprintf("interrupted after %.0f s", s.last.To.Seconds())
	}
	return step
}

// perSecond is a rate with its unit.
func perSecond(rate float64) string {
	if rate == 1 {
		return "1 request/s"
	}
	return number(rate) + " requests/s"
}

// number is a rate without needless digits.
func number(rate float64) string { return fmt.Sprintf("%.4g", rate) }
