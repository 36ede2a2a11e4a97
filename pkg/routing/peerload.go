package routing

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Routers tell each other what they have sent to workers and no load report counts yet, and what
// they hold, so that each predicts as if all were one. Like load reports this comes over NATS, so
// it counts only in predictions, never in a router's own account of a worker, and only for a moment.

const (
	// tellEvery is the least time between two reports of a router, tellAgain the most while it has
	// something to tell, and tellAlive else.
	tellEvery = 5 * time.Millisecond
	tellAgain = 50 * time.Millisecond
	tellAlive = time.Second
	// toldLasts is how long a report of another router counts.
	toldLasts = 4 * tellAgain
	// sentMost and heldMost bound what a report tells, and what is taken of one.
	sentMost = 2048
	heldMost = 64
	// heldGroups is into how many groups requests of one priority and class are put.
	heldGroups = 8
	// maxPeers is how many other routers are listened to.
	maxPeers = 64
	// promptsTell is the least share of its time that prompts take which is worth telling.
	promptsTell = 0.001
)

// telling is what is told other routers.
type telling struct {
	at   time.Time // of the last report
	some bool      // there was something in it
	news bool      // there is more since
}

// told is what another router said last.
type told struct {
	router  string
	epoch   uint64
	trust   trust
	at      time.Time // zero: nothing of it counts
	workers []*worker // that have some of it
	report  uint64    // the number of the last one, among those of all routers
	held    []heldWork
}

// heldWork are requests that wait at another router.
type heldWork struct {
	priority int32
	rank     int
	due      time.Time
	requests int
	ms       float64
}

// learnRouters takes in which other routers there are.
func (rt *Router) learnRouters(e ViewChanged) {
	if rt.config.Router == "" {
		return
	}
	before := rt.others
	rt.others = make([]*told, 0, len(before))
	for _, r := range e.Workers {
		id := r.GetId()
		at, known := rt.other(id)
		if known || r.GetRole() != controlv1.Role_ROLE_ROUTER || id == rt.config.Router || len(rt.others) == maxPeers {
			continue
		}
		t := &told{router: id, epoch: r.GetEpoch()}
		if i := slices.IndexFunc(before, func(o *told) bool { return o.router == id && o.epoch == t.epoch }); i >= 0 {
			t = before[i]
		}
		rt.others = slices.Insert(rt.others, at, t)
	}
	for _, t := range before {
		if !slices.Contains(rt.others, t) {
			t.forget()
		}
	}
}

// other is the place of a router among the others, which are sorted by id.
func (rt *Router) other(id string) (at int, is bool) {
	return slices.BinarySearchFunc(rt.others, id, func(t *told, id string) int { return strings.Compare(t.router, id) })
}

// tell tells the other routers what they have to know, if there are some and it is time.
func (rt *Router) tell(now time.Time) {
	if due := rt.tellDue(); due.IsZero() || now.Before(due) {
		return
	}
	report := &controlv1.RouterReport{Held: rt.queue.tell(now)}
	left := sentMost
	for _, w := range rt.order {
		if share := w.tell(now, left); share != nil {
			report.Shares = append(report.Shares, share)
			if left -= 1 + len(share.GetSent()); left <= 0 {
				break
			}
		}
	}
	rt.telling = telling{at: now, some: len(report.GetShares())+len(report.GetHeld()) > 0}
	rt.out = append(rt.out, Tell{report})
}

// tellDue is when the other routers are to be told again; zero: there are none.
func (rt *Router) tellDue() time.Time {
	switch {
	case len(rt.others) == 0:
		return time.Time{}
	case rt.telling.news:
		return rt.telling.at.Add(tellEvery)
	case rt.telling.some:
		return rt.telling.at.Add(tellAgain)
	}
	return rt.telling.at.Add(tellAlive)
}

// tell is what a worker has of this router, at most so much of it; nil: nothing is to be told.
func (w *worker) tell(now time.Time, most int) *controlv1.RouterShare {
	prompts := w.prompted.share(now)
	if len(w.unseen) == 0 && prompts < promptsTell {
		return nil
	}
	out := &controlv1.RouterShare{WorkerId: w.ref.ID, Epoch: w.ref.Epoch}
	if prompts >= promptsTell {
		out.PromptTimeShare = prompts
	}
	for _, s := range w.unseen[:min(len(w.unseen), most)] {
		out.Sent = append(out.Sent, &controlv1.SentRequest{Task: s.task, PromptTokens: uint32(s.tokens), ContextTokens: uint32(s.context), Blocks: uint32(s.blocks), Decodes: s.decoding > 0})
	}
	return out
}

// tell is what waits.
func (q *queue) tell(now time.Time) (out []*controlv1.HeldRequests) {
	for _, l := range q.levels {
		var entries []*entry
		for _, of := range l.lines {
			entries = append(entries, of.entries...)
		}
		slices.SortFunc(entries, func(a, b *entry) int {
			return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.number, b.number))
		})
		for group := range slices.Chunk(entries, (len(entries)+heldGroups-1)/heldGroups) {
			held := &controlv1.HeldRequests{Priority: l.priority, ClassRank: uint32(l.rank), Requests: uint32(len(group))}
			due := time.Duration(0)
			for _, e := range group {
				held.PromptMs += e.workMs
				due += max(e.until.Sub(now), 0) / time.Duration(len(group))
			}
			held.DueInMs = uint64(due / time.Millisecond)
			if out = append(out, held); len(out) == heldMost {
				return out
			}
		}
	}
	return out
}

// routerReported takes in what another router says.
func (rt *Router) routerReported(now time.Time, report *controlv1.RouterReport) {
	origin := report.GetOrigin()
	at, known := rt.other(origin.GetId())
	if !known || rt.others[at].epoch != origin.GetEpoch() {
		return
	}
	t := rt.others[at]
	switch t.trust.judge(now, origin.GetSequence(), report, tellEvery) {
	case ignored:
		return
	case contradicts:
		t.forget()
		rt.out = append(rt.out, Distrusted{Worker: Ref{origin.GetId(), t.epoch}, Why: DistrustRouter, Wait: t.trust.doubt(now)})
		return
	}
	t.forget()
	rt.peerReports++
	t.at, t.report = now, rt.peerReports
	left := sentMost
	for _, of := range report.GetShares() {
		w := rt.worker(Ref{of.GetWorkerId(), of.GetEpoch()})
		if left--; w == nil || left < 0 || w.toldIn == t.report { // a report has a worker once
			continue
		}
		w.toldIn = t.report
		t.workers = append(t.workers, w)
		if prompts := of.GetPromptTimeShare(); prompts > 0 {
			w.others = append(w.others, share{from: t, prompts: min(prompts, 1)})
		}
		for _, sent := range of.GetSent() {
			if left--; left < 0 {
				break
			}
			s := share{
				from: t, at: now, count: 1, task: sent.GetTask(), tokens: clampInt(uint64(sent.GetPromptTokens())),
				context: clampInt(uint64(sent.GetContextTokens())), blocks: clampInt(uint64(sent.GetBlocks())),
			}
			if sent.GetDecodes() {
				s.decoding, s.decodingContext = 1, s.context
			}
			if s.task == 0 || s.task > w.load.GetTasks() {
				w.others = append(w.others, s)
			}
		}
		w.sumOthers()
	}
	for _, h := range report.GetHeld()[:min(len(report.GetHeld()), heldMost)] {
		held := heldWork{
			priority: h.GetPriority(), rank: clampInt(uint64(h.GetClassRank())), requests: clampInt(uint64(h.GetRequests())),
			due: now.Add(time.Duration(min(h.GetDueInMs(), uint64(rt.config.MaxQueueWait/time.Millisecond))) * time.Millisecond),
		}
		if ms := h.GetPromptMs(); ms > 0 {
			held.ms = min(ms, mostStepMs)
		}
		t.held = append(t.held, held)
	}
}

// expireTold forgets what other routers said a while ago.
func (rt *Router) expireTold(now time.Time) {
	for _, t := range rt.others {
		if !t.at.IsZero() && now.Sub(t.at) > toldLasts {
			t.forget()
		}
	}
}

// forget has nothing of what a router said count any more.
func (t *told) forget() {
	for _, w := range t.workers {
		w.others = slices.DeleteFunc(w.others, func(s share) bool { return s.from == t })
		w.sumOthers()
	}
	t.at, t.workers, t.held = time.Time{}, t.workers[:0], t.held[:0]
}

func (w *worker) sumOthers() {
	w.othersTotal = share{}
	for i := range w.others {
		s := &w.others[i]
		w.othersTotal.sum(s, s.count)
		w.othersTotal.prompts += s.prompts
	}
}

// counted takes in that a report counts so many tasks and the last one counted fewer: what other
// routers sent is among them. If there are some that nobody is known to have sent, each request
// without a number may be one. Then none of these counts until its router says more: rather too few
// for a moment than one twice.
func (w *worker) counted(before, tasks uint64) {
	if len(w.others) == 0 || tasks <= before {
		return
	}
	unknown := int64(tasks - before)
	known := func(s *share) {
		if s.task > before && s.task <= tasks {
			unknown--
		}
	}
	for _, s := range w.unseen {
		known(s)
	}
	for i := range w.others {
		known(&w.others[i])
	}
	w.others = slices.DeleteFunc(w.others, func(s share) bool {
		return s.count > 0 && (s.task > 0 && s.task <= tasks || s.task == 0 && unknown > 0)
	})
	w.sumOthers()
}

// aheadElsewhere is what waits at other routers and goes before e.
func (rt *Router) aheadElsewhere(e *entry) (requests int, ms float64) {
	for _, t := range rt.others {
		for i := range t.held {
			if h := &t.held[i]; h.before(e) {
				requests += h.requests
				ms += h.ms
			}
		}
	}
	return min(requests, math.MaxInt32), ms
}

// heldElsewhere is how many requests wait at other routers.
func (rt *Router) heldElsewhere() (requests int) {
	for _, t := range rt.others {
		for i := range t.held {
			requests += t.held[i].requests
		}
	}
	return min(requests, math.MaxInt32)
}

func (h *heldWork) before(e *entry) bool {
	if h.priority != e.request.Priority {
		return h.priority > e.request.Priority
	}
	if h.rank != e.rank {
		return h.rank < e.rank
	}
	return h.due.Before(e.until)
}

// Peers is how many other routers have told something lately.
func (rt *Router) Peers(now time.Time) (n int) {
	for _, t := range rt.others {
		if t.trust.sequence > 0 && now.Sub(t.trust.sequenceAt) <= 2*tellAlive {
			n++
		}
	}
	return n
}
