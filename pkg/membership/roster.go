package membership

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

// roster is the workers that one watch knows, at most MaxWorkers.
type roster struct {
	known, before map[string]known // before: those of the last listing
	workers       int              // of known, those with a record
	crowded       bool             // a worker was left out, since there were MaxWorkers
	log           *slog.Logger
	throttle      logthrottle.Throttle
}

// known is a key that a watch knows; its record is nil if it counts for nothing.
type known struct {
	record   *controlv1.WorkerRecord
	revision int64
}

func newRoster(log *slog.Logger) *roster {
	return &roster{known: map[string]known{}, before: map[string]known{}, log: log, throttle: newThrottle()}
}

// reset begins a whole new listing.
func (r *roster) reset() {
	r.known, r.before = r.before, r.known
	clear(r.known)
	r.workers, r.crowded = 0, false
}

// apply takes in an event. A malformed record is logged, unless the last listing had it
// already. A known revision is read again: an etcd that lost its data counts them anew.
func (r *roster) apply(event Event) {
	if r.known[event.Key].record != nil {
		r.workers--
	}
	if event.Removed {
		delete(r.known, event.Key)
		return
	}
	record, err := readRecord(event.Entry)
	if before := r.before[event.Key]; err != nil && (before.record != nil || before.revision != event.Revision) {
		r.throttle.Warn(r.log, time.Now(), "worker record in etcd is malformed: ignoring it", slog.String("key", shown(event.Key)), slog.Any("error", err))
	}
	if record != nil && r.workers == MaxWorkers {
		if !r.crowded {
			r.throttle.Warn(r.log, time.Now(), "etcd lists too many workers: ignoring the newest", slog.Int("most", MaxWorkers), slog.String("key", shown(event.Key)))
		}
		record, r.crowded = nil, true
	}
	if record != nil {
		r.workers++
	}
	r.known[event.Key] = known{record: record, revision: event.Revision}
}

// stale says that a worker that was left out would fit now.
func (r *roster) stale() bool { return r.crowded && r.workers < MaxWorkers }

// view is the workers, sorted by role and id.
func (r *roster) view() []*controlv1.WorkerRecord {
	workers := make([]*controlv1.WorkerRecord, 0, r.workers)
	for _, k := range r.known {
		if k.record != nil {
			workers = append(workers, k.record)
		}
	}
	slices.SortFunc(workers, func(a, b *controlv1.WorkerRecord) int {
		return cmp.Or(cmp.Compare(a.GetRole(), b.GetRole()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return workers
}
