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

// outgoingReport is what is known of the last report to other routers.
type outgoingReport struct {
	at       time.Time
	nonEmpty bool
	changed  bool // there is something new to tell since
	shares   int
	next     string // the worker that the next one begins with, if it could not tell all; empty: the first
}

// otherRouter is what another router said last.
type otherRouter struct {
	router string
	epoch  uint64
	trust  trust
	at     time.Time // when it did
	// refusedAt is when it last refused a request for want of time.
	refusedAt time.Time
	report    uint64        // the number of the last one, among those of all routers; 0: nothing counts
	shares    []toldShare   // by the workers' numbers
	sent      []requestLoad // of shares; at most sentMost
	held      []heldWork
}

// heldWork are requests that wait at another router.
type heldWork struct {
	priority int32
	rank     int
	due      time.Time
	requests int
	ms       float64
}

// learnRouters takes in which other routers there are that serve a model of this one's: those of others
// have other workers.
func (rt *Router) learnRouters(e ViewChanged) {
	if rt.config.Router == "" {
		return
	}
	before := rt.otherRouters
	rt.otherRouters = make([]*otherRouter, 0, len(before))
	for _, r := range e.Workers {
		id := r.GetId()
		at, known := rt.findRouter(id)
		if known || r.GetRole() != controlv1.Role_ROLE_ROUTER || id == rt.config.Router || !rt.sharesModel(r) || len(rt.otherRouters) == maxPeers {
			continue
		}
		t := &otherRouter{router: id, epoch: r.GetEpoch()}
		if i := slices.IndexFunc(before, func(o *otherRouter) bool { return o.router == id && o.epoch == t.epoch }); i >= 0 {
			t = before[i]
		}
		rt.otherRouters = slices.Insert(rt.otherRouters, at, t)
	}
	for _, t := range before {
		if !slices.Contains(rt.otherRouters, t) {
			rt.peerLoads.forget(t)
		}
	}
	rt.refused()
}

// sharesModel reports whether a router serves a model that this one does, or does not say what it serves.
func (rt *Router) sharesModel(r *controlv1.WorkerRecord) bool {
	return r.GetModel() == "" || slices.ContainsFunc(rt.config.Models, func(m Model) bool { return m.servedAs(r.GetModel(), r.GetModelDigest()) })
}

// findRouter is the place of a router among the others, which are sorted by id.
func (rt *Router) findRouter(id string) (at int, is bool) {
	return slices.BinarySearchFunc(rt.otherRouters, id, func(t *otherRouter, id string) int { return strings.Compare(t.router, id) })
}

// tell tells the other routers what they have to know, if there are some and it is time.
func (rt *Router) tell(now time.Time) {
	if due := rt.tellDue(); due.IsZero() || now.Before(due) {
		return
	}
	report := &controlv1.RouterReport{Held: rt.queue.tell(now)}
	if ago := now.Sub(rt.refusedHereAt); ago < poolUseLasts { // not what others told, or it would go round for ever
		report.RefusedMsAgo = uint32(ago/time.Millisecond) + 1
	}
	report.Shares = make([]*controlv1.RouterShare, 0, rt.outgoing.shares)
	made := make([]controlv1.RouterShare, rt.outgoing.shares) // all at once, and beside one another
	left, next := sentMost, ""
	workers := rt.peerLoads.ordered(rt.order)
	begin, _ := rt.position(rt.outgoing.next)
	for i := range workers {
		n := workers[(begin+i)%len(workers)]
		if !rt.peerLoads.tells[n.number] {
			continue
		}
		w := n.worker
		prompts := w.promptTime.share(now)
		if len(w.unseen) == 0 && prompts < promptsTell {
			rt.peerLoads.tells[n.number] = false
			continue
		}
		if len(made) == 0 {
			made = make([]controlv1.RouterShare, 1+len(report.GetShares())/4)
		}
		share := &made[0]
		made = made[1:]
		share.WorkerId, share.Epoch = n.ref.ID, n.ref.Epoch
		w.tell(share, prompts, left)
		report.Shares = append(report.Shares, share)
		if left -= 1 + len(share.GetSent()); left <= 0 {
			next = workers[(begin+i+1)%len(workers)].ref.ID
			break
		}
	}
	rt.outgoing = outgoingReport{at: now, nonEmpty: len(report.GetShares())+len(report.GetHeld()) > 0, shares: len(report.GetShares()), next: next}
	rt.out = append(rt.out, Tell{report})
}

// tellDue is when the other routers are to be told again; zero: there are none.
func (rt *Router) tellDue() time.Time {
	switch {
	case len(rt.otherRouters) == 0:
		return time.Time{}
	case rt.outgoing.changed:
		return rt.outgoing.at.Add(tellEvery)
	case rt.outgoing.nonEmpty:
		return rt.outgoing.at.Add(tellAgain)
	}
	return rt.outgoing.at.Add(tellAlive)
}

// tell has out say what a worker has of this router, at most so much of it.
func (w *worker) tell(out *controlv1.RouterShare, prompts float64, most int) {
	if prompts >= promptsTell {
		out.PromptTimeShare = prompts
	}
	for _, s := range w.unseen[:min(len(w.unseen), most)] {
		out.Sent = append(out.Sent, &controlv1.SentRequest{Task: s.task, PromptTokens: uint32(s.tokens), ContextTokens: uint32(s.context), Blocks: uint32(s.blocks), Decodes: s.decoding > 0})
	}
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
	at, known := rt.findRouter(origin.GetId())
	if !known || rt.otherRouters[at].epoch != origin.GetEpoch() {
		return
	}
	t := rt.otherRouters[at]
	switch t.trust.judge(now, origin.GetSequence(), report, tellEvery) {
	case ignored:
		return
	case contradicts:
		rt.peerLoads.forget(t)
		t.refusedAt = time.Time{}
		rt.refused()
		rt.out = append(rt.out, Distrusted{Worker: Ref{origin.GetId(), t.epoch}, Why: DistrustRouter, Wait: t.trust.doubt(now)})
		return
	}
	rt.peerReports++
	rt.peerLoads.said(now, t, rt.peerReports)
	left, place := sentMost, 0
	for _, of := range report.GetShares() {
		ref := Ref{of.GetWorkerId(), of.GetEpoch()}
		// Routers tell of workers in the order that this one has them in, too, if from another one on.
		n, next := rt.peerLoads.find(rt.order, ref, place)
		place = next
		var w *worker
		var number int
		if n != nil {
			w, number = n.worker, n.number
		} else if w = rt.worker(ref); w != nil {
			number = w.number
		}
		if left--; w == nil || left < 0 || t.shares[number].report == t.report { // a report has a worker once
			continue
		}
		said := &t.shares[number]
		said.report, said.prompts, said.sent.from = t.report, 0, int32(len(t.sent))
		if prompts := of.GetPromptTimeShare(); prompts > 0 {
			said.prompts = min(prompts, 1)
		}
		for _, sent := range of.GetSent() {
			if left--; left < 0 {
				break
			}
			s := requestLoad{at: now, task: sent.GetTask(), loadSum: loadSum{
				count: 1, tokens: clampInt(uint64(sent.GetPromptTokens())),
				context: clampInt(uint64(sent.GetContextTokens())), blocks: clampInt(uint64(sent.GetBlocks())),
			}}
			if sent.GetDecodes() {
				s.decoding, s.decodingContext = 1, s.context
			}
			if !sent.GetDecodes() || s.tokens == 0 { // one worker computes it for the other
				s.moving = s.context
			}
			if s.task == 0 || s.task > w.load.GetTasks() {
				t.sent = append(t.sent, s)
			}
		}
		said.sent.to = int32(len(t.sent))
	}
	if ms := report.GetRefusedMsAgo(); ms > 0 {
		t.refusedAt = now.Add(-time.Duration(ms) * time.Millisecond)
		rt.refused()
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

// aheadAtPeers is what waits at other routers and goes before e.
func (rt *Router) aheadAtPeers(e *entry) (requests int, ms float64) {
	for _, t := range rt.otherRouters {
		for i := range t.held {
			if h := &t.held[i]; h.before(e) {
				requests += h.requests
				ms += h.ms
			}
		}
	}
	return min(requests, math.MaxInt32), ms
}

// heldByPeers is how many requests wait at other routers.
func (rt *Router) heldByPeers() (requests int) {
	for _, t := range rt.otherRouters {
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

// KnownRouters is how many other routers have told something lately.
func (rt *Router) KnownRouters(now time.Time) (n int) {
	for _, t := range rt.otherRouters {
		if t.trust.sequence > 0 && now.Sub(t.trust.sequenceAt) <= 2*tellAlive {
			n++
		}
	}
	return n
}
