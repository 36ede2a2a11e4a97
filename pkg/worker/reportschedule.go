package worker

import "time"

// ReportEvery is how often a load report goes out when nothing changes.
const ReportEvery = time.Second

// ReportSchedule says when a load report is due: on change, but two of them at least Apart, and after
// Every if nothing changes. The zero time of Next is now.
type ReportSchedule struct {
	Apart, Every time.Duration

	last    time.Time
	changed bool
}

// Changed says that the load may differ from the last report.
func (s *ReportSchedule) Changed() { s.changed = true }

// Next is when a report is due, if nothing else changes.
func (s *ReportSchedule) Next() time.Time {
	switch {
	case s.last.IsZero():
		return time.Time{}
	case s.changed:
		return s.last.Add(s.Apart)
	}
	return s.last.Add(s.Every)
}

// Reported says that a report went out now.
func (s *ReportSchedule) Reported(now time.Time) { s.last, s.changed = now, false }
