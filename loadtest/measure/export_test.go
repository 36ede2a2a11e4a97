package measure

import "github.com/tandem-serving/tandem/loadtest/record"

// Judge computes only the verdict, fast enough for thousands of runs.
func Judge(run *record.Run) *Summary {
	s := &Summary{}
	var due []*record.Record
	for _, r := range run.Records {
		if r.Due >= run.From && r.Due <= run.To {
			due = append(due, r)
		}
	}
	s.outcomes(due)
	s.OfferedRPS = float64(len(due)) / (run.To - run.From).Seconds()
	s.Verdict, s.Reason = verdict(run, s)
	return s
}
