package fleet

import (
	"fmt"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// worker is what is known of one incarnation of a worker.
type worker struct {
	ref         Ref
	record      *controlv1.WorkerRecord
	connected   bool
	connectedAt time.Time
	registered  bool
	lostAt      time.Time // when etcd stopped listing it

	load   *controlv1.LoadReport
	loadAt time.Time

	own    map[string]*share // this router's requests that run on it
	recent []*share          // those that the last load report may not contain
	total  share             // sums over own

	usedAt    time.Time // when a request was last sent there
	busyUntil time.Time
	refusals  int
	hungAt    time.Time // when a request last gave it up for its silence

	fetches fetchSpeed // from block stores

	listing  bool      // an answer to ListBlocks is on its way
	listNext time.Time // a failed one is not asked again before
	unlisted bool      // the index needs a snapshot
}

// share is what one request takes of a worker.
type share struct {
	at      time.Time
	tokens  int // still to compute before its first token
	blocks  int
	context int
	done    bool
}

func newWorker(record *controlv1.WorkerRecord) *worker {
	return &worker{
		ref:    Ref{record.GetId(), record.GetEpoch()},
		record: record,
		own:    make(map[string]*share),
	}
}

// is reports whether a record is of this incarnation.
func (w *worker) is(record *controlv1.WorkerRecord) bool {
	return w.ref.Epoch == record.GetEpoch() && w.record.GetRole() == record.GetRole()
}

func (w *worker) add(id string, s *share) {
	w.usedAt = s.at
	w.own[id] = s
	w.recent = append(w.recent, s)
	w.total.tokens += s.tokens
	w.total.blocks += s.blocks
	w.total.context += s.context
}

// computed says that a request's prompt needs no more work here.
func (w *worker) computed(id string) {
	if s, ok := w.own[id]; ok {
		w.total.tokens -= s.tokens
		s.tokens = 0
	}
}

func (w *worker) remove(id string) {
	s, ok := w.own[id]
	if !ok {
		return
	}
	delete(w.own, id)
	s.done = true
	w.total.tokens -= s.tokens
	w.total.blocks -= s.blocks
	w.total.context -= s.context
	if len(w.own) == 0 {
		w.recent = nil
	}
}

// report takes in a load report: what was sent before it, with some time to
// arrive, is in it. It says whether there is more room than the router believed.
func (w *worker) report(now time.Time, report *controlv1.LoadReport, config Config) (more bool) {
	before := w.estimate(now, config.LoadStale)
	w.load, w.loadAt = report, now
	kept := w.recent[:0]
	for _, s := range w.recent {
		if !s.done && now.Sub(s.at) < config.ReportLag {
			kept = append(kept, s)
		}
	}
	clear(w.recent[len(kept):])
	w.recent = kept
	after := w.estimate(now, config.LoadStale)
	return after.sequences < before.sequences || after.free > before.free
}

// fresh reports whether the last load report is to be believed.
func (w *worker) fresh(now time.Time, stale time.Duration) bool {
	return w.load != nil && now.Sub(w.loadAt) <= stale
}

// hungKept is how long a worker that was silent in a request is avoided, unless
// it reports its load before.
const hungKept = 30 * time.Second

// hung reports that a request waited in vain for this worker a while ago and that
// nothing was heard of it since.
func (w *worker) hung(now time.Time) bool {
	return !w.hungAt.IsZero() && !w.loadAt.After(w.hungAt) && now.Sub(w.hungAt) < hungKept
}

// silent reports that a worker, connected for long enough, has not reported its
// load for a while: its process may hang although its connection works.
func (w *worker) silent(now time.Time, stale time.Duration) bool {
	return !w.fresh(now, stale) && now.Sub(w.connectedAt) > stale
}

// estimate is the load of a worker as the router believes it to be now.
type estimate struct {
	sequences int // running and waiting
	tokens    int // to compute before the first token of those that wait
	context   int // tokens of context
	free      int // blocks
}

// estimate combines the last report, if it is fresh, with what this router sent
// since; without one, it is this router's own account.
func (w *worker) estimate(now time.Time, stale time.Duration) estimate {
	blocks := int(w.record.GetCapacity().GetBlocks())
	if !w.fresh(now, stale) {
		return estimate{len(w.own), w.total.tokens, w.total.context, blocks - w.total.blocks}
	}
	e := estimate{
		sequences: int(w.load.GetRunningSequences()) + int(w.load.GetWaitingSequences()),
		tokens:    clampInt(w.load.GetWaitingTokens()),
		context:   clampInt(w.load.GetRunningContextTokens()),
		free:      int(w.load.GetBlocksFree()),
	}
	for _, s := range w.recent {
		if !s.done {
			e.sequences++
			e.tokens += s.tokens
			e.context += s.context
			e.free -= s.blocks
		}
	}
	// Own requests are there, whatever a report says that overtook them.
	e.sequences = max(e.sequences, len(w.own))
	return e
}

func clampInt(v uint64) int { return int(min(v, math.MaxInt32)) }

// blocksFor is how many blocks tokens take on this worker.
func (w *worker) blocksFor(tokens int) int {
	size := max(int(w.record.GetCapacity().GetBlockTokens()), 1)
	return (tokens + size - 1) / size
}

// room says why a sequence of so many blocks has no room now; empty if it has.
func (w *worker) room(e estimate, blocks int) string {
	c := w.record.GetCapacity()
	if limit := int(c.GetMaxSequences()) + int(c.GetMaxWaiting()); limit > 0 && e.sequences >= limit {
		return fmt.Sprintf("full: %d of %d sequences", e.sequences, limit)
	}
	if c.GetBlocks() > 0 && blocks > e.free {
		return fmt.Sprintf("full: %d blocks needed, %d free", blocks, max(e.free, 0))
	}
	return ""
}

// defaultStep stands in where no worker of a role has measured anything.
var defaultStep = latency.Model{BaseMs: 20, PerTokenMs: 0.5, PerContextTokenMs: 0.0002}

// mostStepMs bounds what a worker may say of its steps: products of it with any
// number of tokens are finite.
const mostStepMs = 1e9

// measured is how long a step takes on this worker, as it has measured. What no
// measurement can be, not a number included, counts as none.
func (w *worker) measured() (latency.Model, bool) {
	m := w.load.GetStepTime()
	for _, ms := range [...]float64{m.GetBaseMs(), m.GetPerTokenMs(), m.GetPerContextTokenMs()} {
		if !(ms >= 0 && ms <= mostStepMs) {
			return latency.Model{}, false
		}
	}
	if m.GetSamples() == 0 {
		return latency.Model{}, false
	}
	return latency.Model{BaseMs: m.GetBaseMs(), PerTokenMs: m.GetPerTokenMs(), PerContextTokenMs: m.GetPerContextTokenMs(), Samples: m.GetSamples()}, true
}

// unmeasuredStep is how long a step is taken to last on a worker of a role that
// has measured nothing: as long as on the quickest that has, or it would never
// be given anything to measure. Samples is 0.
func (f *Fleet) unmeasuredStep(role controlv1.Role) latency.Model {
	// A prefill step is a chunk, a decode step a token of each of some sequences.
	tokens, context := 256, 256
	if role == controlv1.Role_ROLE_DECODE {
		tokens, context = 8, 8*512
	}
	step, known := defaultStep, false
	for _, w := range f.order {
		m, ok := w.measured()
		if ok && w.record.GetRole() == role && (!known || m.Predict(tokens, context) < step.Predict(tokens, context)) {
			step, known = m, true
		}
	}
	step.Samples = 0
	return step
}

// compute is the time to compute tokens after cached ones, in chunks,
// milliseconds.
func (w *worker) compute(m latency.Model, tokens, cached int) float64 {
	if tokens <= 0 {
		return 0
	}
	chunk := int(w.record.GetCapacity().GetMaxBatchTokens())
	if chunk <= 0 {
		chunk = tokens
	}
	chunks := float64((tokens + chunk - 1) / chunk)
	return chunks*m.BaseMs + float64(tokens)*m.PerTokenMs +
		chunks*m.PerContextTokenMs*(float64(cached)+float64(tokens)/2)
}

// bytesPerToken is the KV of one token over all layers.
func (w *worker) bytesPerToken() float64 {
	l := w.record.GetLayout()
	if l.GetBlockTokens() == 0 {
		return 0
	}
	return float64(l.GetLayers()) * float64(l.GetSliceBytes()) / float64(l.GetBlockTokens())
}

func (w *worker) class() string { return w.record.GetLayout().GetArithmeticClass() }

// lineage is what the tokens of a request depend on beside the request itself:
// the weights and how they are computed with. Within one lineage they are the
// same.
func (w *worker) lineage() string { return w.class() + " of " + w.record.GetModelDigest() }
