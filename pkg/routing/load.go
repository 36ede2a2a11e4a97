package routing

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// loadSum is what one request, or several, take of a worker, or what all do that it has, as its load
// report says.
type loadSum struct {
	count   int // of how many
	tokens  int // still to compute before its first token
	blocks  int // below 0: so many are free at a worker that does not say how many it has
	context int
	// decoding is 1 if it decodes there, of context tokens so far, as decodingContext says; of
	// several, how many do.
	decoding, decodingContext int
	moving                    int // tokens whose KV is to be sent to it, or by it, and has not all arrived
}

// requestLoad is what one request takes of a worker.
type requestLoad struct {
	loadSum
	at time.Time
	// task is its number there: load reports that count so many tasks count it. 0: the worker
	// has not said yet that it has it, or is of a version that does not.
	task  uint64
	begun time.Time // when it began with it; zero: it has not
	// unseen is its place in worker.unseen, counted from 1; 0: the last report counts it.
	unseen int
}

func (s *loadSum) add(o *loadSum, times int) {
	s.count += times * o.count
	s.tokens += times * o.tokens
	s.blocks += times * o.blocks
	s.context += times * o.context
	s.decoding += times * o.decoding
	s.decodingContext += times * o.decodingContext
	s.moving += times * o.moving
}

func (w *worker) add(id string, s *ownLoad) {
	w.usedAt = s.at
	if s.with != nil {
		s.with.sharers++
	}
	w.own[id] = s
	w.owned = len(w.own)
	w.unseen = append(w.unseen, &s.requestLoad)
	w.peerLoads.tells[w.number] = true // of its prompt, too
	s.unseen = len(w.unseen)
	w.total.add(&s.loadSum, 1)
	w.unseenTotal.add(&s.loadSum, 1)
}

// seen says that the last report counts a request, or that it is gone.
func (w *worker) seen(s *requestLoad) {
	if s.unseen == 0 {
		return
	}
	last := len(w.unseen) - 1
	moved := w.unseen[last]
	w.unseen[s.unseen-1], moved.unseen = moved, s.unseen
	w.unseen[last], w.unseen = nil, w.unseen[:last]
	s.unseen = 0
	w.unseenTotal.add(&s.loadSum, -1)
}

// computed says that a request's prompt needs no more work here.
func (w *worker) computed(id string) {
	if s, ok := w.own[id]; ok {
		w.total.tokens -= s.tokens
		if s.unseen > 0 {
			w.unseenTotal.tokens -= s.tokens
		}
		s.tokens = 0
	}
}

// arrived says that no KV of a request is to be sent any more.
func (w *worker) arrived(id string) {
	if s, ok := w.own[id]; ok {
		w.total.moving -= s.moving
		if s.unseen > 0 {
			w.unseenTotal.moving -= s.moving
		}
		s.moving = 0
	}
}

func (w *worker) remove(id string) {
	s, ok := w.own[id]
	if !ok {
		return
	}
	delete(w.own, id)
	w.owned = len(w.own)
	w.seen(&s.requestLoad)
	w.total.add(&s.loadSum, -1)
	w.passOn(s)
}

// doubling is how long to leave something alone that has failed times before.
func doubling(least time.Duration, times int, most time.Duration) time.Duration {
	return min(least<<min(times, 10), most)
}

// report takes in a load report, which contains what was sent some time before it. If requests wait,
// it says whether the worker is less busy than the router believed.
func (w *worker) report(now time.Time, report *controlv1.LoadReport, config Config, wait bool) (more bool) {
	var before loadSum
	if wait {
		before = w.estimate(now, config.LoadStale)
	}
	resumed := w.load != nil && now.Sub(w.loadAt) > config.LoadStale/2
	tasks := w.load.GetTasks()
	w.read(report)
	w.loadAt = now
	w.counted(tasks, report.GetTasks())
	goesOn := w.reported(now, report, resumed)
	for _, s := range slices.Backward(w.unseen) {
		if s.countedIn(report, now, config.ReportLag) {
			w.seen(s)
		}
	}
	if !wait {
		return false
	}
	after := w.estimate(now, config.LoadStale)
	return goesOn || after.count < before.count || after.tokens < before.tokens || after.blocks < before.blocks
}

// countedIn reports whether a load report counts a request. Where the worker's version does not say,
// it is taken to count one that the worker began with a while ago.
func (s *requestLoad) countedIn(report *controlv1.LoadReport, now time.Time, lag time.Duration) bool {
	switch tasks := report.GetTasks(); {
	case tasks == 0:
		return now.Sub(s.at) >= lag
	case s.task > 0:
		return s.task <= tasks
	}
	return !s.begun.IsZero() && now.Sub(s.begun) >= lag
}

// fresh reports whether the last load report is to be believed.
func (w *worker) fresh(now time.Time, stale time.Duration) bool {
	return w.load != nil && now.Sub(w.loadAt) <= stale
}

// silent reports that a worker, connected for long enough, has not reported its
// load for a while: its process may hang although its connection works.
func (w *worker) silent(now time.Time, stale time.Duration, fresh bool) bool {
	return !fresh && now.Sub(w.connectedAt) > stale && !w.distrusted(now)
}

// estimate is the load of a worker as the router believes it to be now. It combines the last report,
// if it is fresh, with what this router and others sent since; without one, it is this router's own
// account.
func (w *worker) estimate(now time.Time, stale time.Duration) loadSum {
	others, _ := w.ofOtherRouters()
	return w.estimateWith(w.fresh(now, stale), &others)
}

// estimateWith is estimate for who has asked whether the report is fresh, and what others sent.
func (w *worker) estimateWith(fresh bool, others *loadSum) loadSum {
	if !fresh {
		return w.total
	}
	e := w.reads
	e.add(&w.unseenTotal, 1)
	e.add(others, 1)
	// Own requests are there, whatever a report says that overtook them.
	e.count, e.decoding, e.moving = max(e.count, w.owned), max(e.decoding, w.total.decoding), max(e.moving, w.total.moving)
	return e
}

// ahead is how many tokens of prompts the worker computes before one of which it lacks so many:
// it takes the shorter ones first.
func (w *worker) ahead(fresh bool, lacks int) (tokens int) {
	length := min(bits.Len(uint(max(lacks, 0))), len(w.prompts)-1)
	add := func(s *requestLoad) {
		if bits.Len(uint(s.tokens)) <= length {
			tokens += s.tokens
		}
	}
	if !fresh {
		for _, s := range w.own {
			add(&s.requestLoad)
		}
		return tokens
	}
	tokens = max(int(w.prompts[length]), w.inStep)
	for _, s := range w.unseen {
		add(s)
	}
	w.eachOther(add)
	return tokens
}

// atMost is v within a limit, unless that is 0: then the worker states none.
func atMost(v, limit uint64) uint64 {
	if limit == 0 {
		return v
	}
	return min(v, limit)
}

func clampInt(v uint64) int { return int(min(v, math.MaxInt32)) }

// full reports whether a sequence of so many blocks does not fit now.
func (w *worker) full(e loadSum, blocks int) bool {
	return w.crowded(e) || w.blocks > 0 && blocks > w.blocks-e.blocks
}

// crowded reports whether a worker has as many sequences as it takes.
func (w *worker) crowded(e loadSum) bool {
	limit := w.maxSequences + w.maxWaiting
	return limit > 0 && e.count >= limit
}

// fullWhy says why a worker is full. Where all are, it is called for each of them.
func (w *worker) fullWhy(e loadSum, blocks int) string {
	if w.crowded(e) {
		return "full: " + strconv.Itoa(e.count) + " of " + strconv.Itoa(w.maxSequences+w.maxWaiting) + " sequences"
	}
	return "full: " + strconv.Itoa(blocks) + " blocks needed, " + strconv.Itoa(max(w.blocks-e.blocks, 0)) + " free"
}
