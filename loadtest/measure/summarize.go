package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Options are the objectives to judge a run by.
type Options struct {
	// SLO of requests whose class is not in ClassSLO.
	SLO SLO
	// ClassSLO by class of request.
	ClassSLO map[string]SLO
}

// slo is the objectives of a class.
func (o Options) slo(class string) SLO {
	if s, ok := o.ClassSLO[class]; ok {
		return s
	}
	return o.SLO
}

// Summarize computes the figures of a run and keeps no reference to it. The result is
// never nil: without requests all figures are 0 and the verdict is None.
func Summarize(run *record.Run, options Options) *Summary {
	s := summarize(run, run.Records, options)
	s.Verdict, s.Reason = verdict(run, s)
	classes := map[string][]*record.Record{}
	for _, r := range run.Records {
		classes[r.Class] = append(classes[r.Class], r)
	}
	if len(classes) > 1 {
		s.Classes = map[string]*Summary{}
		for class, records := range classes {
			c := summarize(run, records, Options{SLO: options.slo(class)})
			// Whether the server kept up does not depend on the class.
			c.Verdict, c.Reason = s.Verdict, s.Reason
			c.BacklogSlope, c.BacklogSlopeCI = s.BacklogSlope, s.BacklogSlopeCI
			s.Classes[class] = c
		}
	}
	return s
}

// summarize computes all figures but the verdict and classes, of some of a run's records.
func summarize(run *record.Run, records []*record.Record, options Options) *Summary {
	s := &Summary{SLO: options.SLO.String(), Verdict: None}
	var due, completed []*record.Record
	for _, r := range records {
		if !run.Counts(r) {
			continue
		}
		due = append(due, r)
		if r.Outcome == record.Completed {
			completed = append(completed, r)
		}
	}
	s.outcomes(due)
	s.means(completed)
	for _, l := range requestLatencies {
		of := due
		if l.whole {
			of = completed
		}
		*l.of(s) = distribution(perRequest(collect(of, l.value)))
	}
	s.DispatchDelay = distribution(perRequest(collect(due, func(r *record.Record) time.Duration { return between(r.Due, r.Dispatched) })))
	s.ITL = distribution(gaps(due, false))
	s.ITLMessage = distribution(gaps(due, true))
	s.rates(run, records, options)
	s.attainment(due, options)
	s.Objectives = objectives(due, run.Drained, options)
	return s
}

func (s *Summary) outcomes(due []*record.Record) {
	s.Requests = len(due)
	said := map[string]string{}
	for _, r := range due {
		switch r.Outcome {
		case record.Completed:
			s.Completed++
			continue
		case record.Rejected:
			s.Rejected++
			if r.TenantLimited() {
				s.TenantLimited++
			}
		case record.Failed:
			s.Errors++
		case record.TimedOut:
			s.TimedOut++
		case record.Unsent:
			s.Unsent++
			continue
		default:
			s.Cancelled++
			continue
		}
		if r.Code != "" {
			if s.Codes == nil {
				s.Codes = map[string]int{}
			}
			s.Codes[r.Code]++
			if said[r.Code] == "" {
				said[r.Code] = r.Error
			}
		}
	}
	for code, n := range s.Codes {
		s.Failures = append(s.Failures, Failure{Code: code, Count: n, Example: said[code]})
	}
	slices.SortFunc(s.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Code, b.Code))
	})
}

func (s *Summary) means(completed []*record.Record) {
	mean := func(value func(*record.Record) int) float64 {
		sum, n := 0.0, 0.0
		for _, r := range completed {
			if v := value(r); v >= 0 {
				sum += float64(v)
				n++
			}
		}
		return sum / max(n, 1)
	}
	s.PromptTokensMean = mean(func(r *record.Record) int { return r.PromptTokens })
	s.OutputTokensMean = mean(func(r *record.Record) int { return r.OutputTokens })
	s.CachedTokensMean = mean(func(r *record.Record) int { return r.CachedTokens })
}

// rateBins is the number of parts of the window behind a rate's interval, studentT the
// 97.5% quantile of Student's t with rateBins-1 degrees of freedom.
const (
	rateBins = 20
	studentT = 2.093
)

// rates counts what happened in the window, to any request: ends of earlier requests
// stand for those that end after it.
func (s *Summary) rates(run *record.Run, records []*record.Record, options Options) {
	window := (run.To - run.From).Seconds()
	if window <= 0 {
		return
	}
	s.OfferedRPS = float64(s.Requests) / window
	bin := func(at time.Duration) (int, bool) {
		if at < run.From || at > run.To {
			return 0, false
		}
		return min(int((at-run.From).Seconds()/window*rateBins), rateBins-1), true
	}
	var completed, good, tokens, prompts [rateBins]float64
	for _, r := range records {
		for _, a := range r.Arrivals {
			if b, in := bin(a.At); in {
				tokens[b] += float64(a.Tokens)
			}
		}
		if b, in := bin(r.First()); in && r.PromptTokens > 0 {
			prompts[b] += float64(r.PromptTokens)
		}
		if b, in := bin(r.End); in && r.Outcome == record.Completed {
			completed[b]++
			if met(r, options.slo(r.Class)) == kept {
				good[b]++
			}
		}
	}
	s.RateCI = map[string][2]float64{}
	rate := func(name string, bins *[rateBins]float64) float64 {
		sum, squares := 0.0, 0.0
		for _, v := range bins {
			sum += v
		}
		for _, v := range bins {
			squares += (v - sum/rateBins) * (v - sum/rateBins)
		}
		perSecond := sum / window
		switch {
		case name == "":
		case sum >= rateBins: // fewer say nothing about the variance
			deviation := math.Sqrt(squares / (rateBins - 1) * stats.AutocorrelationTime(bins[:]) / rateBins)
			half := studentT * deviation * rateBins / window
			s.RateCI[name] = [2]float64{max(0, perSecond-half), perSecond + half}
		case bins != &tokens: // the tokens of an answer come together
			s.RateCI[name] = poisson(sum, window)
		}
		return perSecond
	}
	s.CompletedRPS = rate("completed_rps", &completed)
	s.Goodput = rate("goodput_rps", &good)
	s.OutputTokensPerS = rate("output_tokens_per_s", &tokens)
	s.PromptTokensPerS = rate("", &prompts)
}

// poisson is the 95% confidence interval of a rate of n independent events in a time, also
// of none: the score interval (E. B. Wilson, 1927) for the mean of a Poisson distribution.
func poisson(n, seconds float64) [2]float64 {
	const z = 1.959964
	center, half := n+z*z/2, z*math.Sqrt(n+z*z/4)
	return [2]float64{max(0, center-half) / seconds, (center + half) / seconds}
}
