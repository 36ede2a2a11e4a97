package routing

import (
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Load reports come over NATS, where whoever reaches the server may speak for any
// worker. So they make a worker more or less preferred, and never stop dispatch alone.
//
// A worker numbers its reports. Another sender uses numbers that the worker uses too,
// at the latest with the worker's next report, within a second: then neither is
// believed for a while. And a worker that is full by its reports, but not by the
// router's own account, gets one request before long. If it takes that at once, though by its last
// report the prompt alone had no room, its reports were wrong.

const (
	// reportSlack is how many reports more than that are believed, since some come late:
	// those of ten seconds.
	reportSlack = 400
	// distrustLeast and distrustMost are how long a worker's reports are not believed;
	// it doubles each time.
	distrustLeast = 10 * time.Second
	distrustMost  = 5 * time.Minute
)

// Why reports are not believed.
const (
	// DistrustNumbers: two senders use one worker's numbers.
	DistrustNumbers = "numbers"
	// DistrustRefuted: the worker took a request at once though it reported to be full.
	DistrustRefuted = "refuted"
	// DistrustRouter: two senders use one router's numbers.
	DistrustRouter = "router"
)

// probe is a request that was sent to a worker which is full by its reports alone.
type probe struct {
	id     string // empty: none is on its way
	at     time.Time
	blocks int // that the worker lacks for its prompt: it may admit it with no more
}

// trust is whether somebody's reports are believed.
type trust struct {
	sequence   uint64 // of the last report; 0: the next begins
	sequenceAt time.Time
	last       proto.Message // the last one, as it came
	until      time.Time     // before it they are not believed
	times      int           // that they were not believed
}

// verdict is what is to be done with a report.
type verdict int

const (
	accepted verdict = iota
	ignored
	contradicts // two senders use the same numbers
)

// judge takes in a report of somebody who sends no more than one each spacing.
func (t *trust) judge(now time.Time, sequence uint64, report proto.Message, spacing time.Duration) verdict {
	switch {
	case now.Before(t.until), sequence == 0: // they are numbered from 1
		return ignored
	case t.sequence == 0:
	case sequence == t.sequence && proto.Equal(report, t.last):
		return ignored
	case sequence <= t.sequence:
		return contradicts
	case sequence-t.sequence > reportSlack+uint64(max(now.Sub(t.sequenceAt), 0)/spacing):
		return ignored // nobody has sent so many
	}
	t.sequence, t.sequenceAt, t.last = sequence, now, report
	return accepted
}

// doubt has reports not be believed for a while.
func (t *trust) doubt(now time.Time) (wait time.Duration) {
	if now.Sub(t.until) > distrustMost {
		t.times = 0 // it is long ago
	}
	wait = doubling(distrustLeast, t.times, distrustMost)
	*t = trust{until: now.Add(wait), times: t.times + 1}
	return wait
}

// distrusted reports whether the worker's reports are not believed now.
func (w *worker) distrusted(now time.Time) bool { return now.Before(w.trust.until) }

// reported takes in a load report. It says whether the worker is less busy than the
// router believed.
func (rt *Router) reported(now time.Time, report *controlv1.LoadReport) (more bool) {
	origin := report.GetOrigin()
	w := rt.worker(Ref{origin.GetId(), origin.GetEpoch()})
	if w == nil {
		return false
	}
	switch w.trust.judge(now, origin.GetSequence(), report, api.ReportSpacing) {
	case ignored:
		return false
	case contradicts:
		return rt.distrust(now, w, DistrustNumbers)
	}
	w.heardAt = now
	rt.waking.report(w)
	rt.announced(now, w, report.GetKvSequence())
	more = w.report(now, report, rt.config, len(rt.queue.ids) > 0) && rt.begins(now, w)
	if s := w.own[w.probe.id]; s != nil && !w.full(w.reads, s.blocks) {
		w.probe = probe{} // it need not find out any more
	}
	return rt.staysAgain(now, w) || more
}

// distrust goes by the router's own account of a worker for a while. It says that the
// worker may be less busy than the reports said.
func (rt *Router) distrust(now time.Time, w *worker, why string) (more bool) {
	w.read(nil)
	w.probe = probe{}
	rt.out = append(rt.out, Distrusted{Worker: w.ref, Why: why, Wait: w.trust.doubt(now)})
	return true
}

// doubts takes in that load reports alone keep a worker from a request. It says whether they have for so
// long that it is to be sent there nevertheless.
func (s *search) doubts(config *Config) bool {
	e := s.entry
	if e.byReports = true; e.byReportsSince.IsZero() {
		e.byReportsSince = s.now
	}
	return !s.now.Before(e.byReportsSince.Add(config.ReportDoubt))
}

// taken takes in that a worker began with a request. It says whether others may follow: the queue is looked
// at then, and not only with the next report.
func (rt *Router) taken(now time.Time, e Taken) bool {
	d, ok := rt.running[e.ID]
	if !ok {
		return false
	}
	w, waits := d.of(e.Role), len(rt.queue.ids) > 0
	if w == nil {
		return false
	}
	s := w.own[e.ID]
	if s != nil {
		s.begun = now
		if w == d.decode && d.prefill != nil {
			w.reserveMs = average(w.reserveMs, now.Sub(s.at), averageWeight)
		}
	}
	if w.probe.id != e.ID {
		return waits
	}
	probed := w.probe
	w.probe = probe{}
	// A report that counts it already says nothing of the room that it found.
	if now.Sub(probed.at) <= rt.config.ReportLag && s != nil && s.unseen > 0 && w.load != nil && w.full(w.reads, probed.blocks) {
		return rt.distrust(now, w, DistrustRefuted)
	}
	return true
}

// DistrustedWorkers is how many workers are run by the router's own account, since
// their reports are not believed.
func (rt *Router) DistrustedWorkers(now time.Time) (n int) {
	for _, w := range rt.order {
		if w.distrusted(now) {
			n++
		}
	}
	return n
}
