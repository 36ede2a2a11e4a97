package worker

import "time"

const (
	// ReportApart is the minimum time between two load reports. A router counts its own
	// requests itself, so a report need not be instant.
	ReportApart = 25 * time.Millisecond
	// ReportEvery is how often a load report goes out when nothing changes.
	ReportEvery = time.Second
)

// Pace says when a load report is due: on change, but two of them at least Apart, and after
// Every if nothing changes. The zero time of Next is now.
type Pace struct {
	Apart, Every time.Duration

	last    time.Time
	changed bool
}

// Changed says that the load may differ from the last report.
func (p *Pace) Changed() { p.changed = true }

// Next is when a report is due, if nothing else changes.
func (p *Pace) Next() time.Time {
	switch {
	case p.last.IsZero():
		return time.Time{}
	case p.changed:
		return p.last.Add(p.Apart)
	}
	return p.last.Add(p.Every)
}

// Reported says that a report went out now.
func (p *Pace) Reported(now time.Time) { p.last, p.changed = now, false }
