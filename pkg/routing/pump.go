package routing

import (
	"cmp"
	"math"
	"slices"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// alike are requests that may go to the same workers.
type alike struct {
	model   string
	version Version
	mode    inferencev1.Mode
}

func (e *entry) alike() alike { return alike{e.request.Model, e.version, e.request.Mode} }

// stuck is why requests that are alike wait.
type stuck struct {
	tries   int  // of them that found no place in this pump
	least   int  // the fewest tokens that one of those wants that lack blocks
	blocked bool // the others wait too
	lacking *lacking
}

// lacking are the requests of one version of a model that lack blocks, or wait behind such as the
// next of their tenants, whatever their mode: all take blocks of the same workers.
type lacking struct {
	entries []*entry
	starved bool // smaller ones went before one of them for long enough: all others wait
}

// waits are what was found of those that wait in one pump. Those of lacking are by an alike without
// a mode.
type waits struct {
	stuck   map[alike]*stuck
	lacking map[alike]*lacking
}

func (w *waits) of(key alike) *stuck {
	g := w.stuck[key]
	if g != nil {
		return g
	}
	g = &stuck{least: math.MaxInt}
	w.stuck[key] = g
	key.mode = inferencev1.Mode_MODE_UNSPECIFIED
	if g.lacking = w.lacking[key]; g.lacking == nil {
		g.lacking = new(lacking)
		w.lacking[key] = g.lacking
	}
	return g
}

const (
	// triesMost: once so many requests that are alike found no worker in one pump, the others wait.
	triesMost = 4
	// overtakesMost: while a request lacks blocks, smaller ones may go before it, until they have had
	// so many times the tokens that it wants. From then on they wait until it has gone.
	overtakesMost = 4
	// leastWorkMs is the prompt of a request that was looked at, at least.
	leastWorkMs = 1e-3
)

// pump gives requests that wait to workers, in order. Where one has no place, those that want less
// may pass, a few times.
func (rt *Router) pump(now time.Time) {
	rt.queue.due = time.Time{}
	if len(rt.queue.ids) == 0 {
		return
	}
	defer rt.schedule()
	rt.expire(now)
	groups := &waits{make(map[alike]*stuck), make(map[alike]*lacking)}
	rt.queue.allHeld = true
	for i := 0; i < len(rt.queue.levels); {
		l := rt.queue.levels[i]
		rt.pumpLevel(now, l, groups)
		if i < len(rt.queue.levels) && rt.queue.levels[i] == l { // some of it still wait
			i++
		}
	}
}

// pumpLevel goes through one level: first who was overtaken for long enough, then always the tenant
// that was served least, with the next request of it.
func (rt *Router) pumpLevel(now time.Time, l *level, groups *waits) {
	starved := slices.Clone(rt.queue.starved)
	for _, e := range starved {
		if e.levelKey() != l.levelKey {
			continue
		}
		passed := rt.queue.firsts(l, e)
		if !rt.try(now, e, groups) || rt.running[e.request.ID] == nil {
			continue
		}
		for _, o := range passed {
			rt.queue.overtake(o, e.tokens())
		}
	}
	byShare := func(a, b *line) int {
		return cmp.Compare(a.share.served, b.share.served)
	}
	lines := slices.Clone(l.lines)
	slices.SortStableFunc(lines, byShare)
	for _, of := range lines {
		of.passed = 0
	}
	for len(lines) > 0 {
		of := lines[0]
		if of.passed == len(of.entries) {
			lines = lines[1:]
			continue
		}
		if e := of.entries[of.passed]; e.starved && slices.Contains(starved, e) {
			of.passed++ // it has found no place
			continue
		} else if !rt.try(now, e, groups) {
			if of.passed == 0 && e.behind { // whoever goes now does so before a tenant's next
				waits := groups.of(e.alike()).lacking
				waits.entries = append(waits.entries, e)
			}
			of.passed++
			continue
		}
		if len(of.entries) == 0 {
			continue
		}
		// It was served more: others may come before its next.
		at, _ := slices.BinarySearchFunc(lines[1:], of, byShare)
		if at > 0 {
			copy(lines, lines[1:at+1])
			lines[at] = of
		}
	}
}

// expire refuses those whose wait is over.
func (rt *Router) expire(now time.Time) {
	var over []*entry
	for e := range rt.queue.all() {
		if !now.Before(e.until) {
			over = append(over, e)
		}
	}
	for _, e := range over {
		rt.waited(e)
		e.refused = e.outwaited(now)
		if e.noWorkerSince.IsZero() {
			rt.refusedFor(now, e)
		}
		rt.giveUp(e, rt.expired(now, e))
	}
}

// try gives one request to workers, or refuses it. False: it waits.
func (rt *Router) try(now time.Time, e *entry, groups *waits) (gone bool) {
	if rt.assign(now, e) {
		e.noWorkerSince = time.Time{} // there are workers, about to answer
		return false
	}
	g := groups.of(e.alike())
	// A retried request may use fewer workers than others: neither waits behind the other.
	retried := len(e.request.Failures) > 0
	e.barred = !retried && g.lacking.starved
	e.behind = e.barred || !retried && (g.blocked || e.tokens() >= g.least)
	if e.behind && e.workMs > 0 {
		e.noWorkerSince = time.Time{}  // there is a worker, but it is full
		e.byReportsSince = time.Time{} // what is before it keeps it, and not reports alone
		return false
	}
	fitness, refusal := rt.decide(now, e)
	rt.queue.allHeld = rt.queue.allHeld && (fitness.usable() || fitness == held)
	switch {
	case fitness.usable():
		for _, large := range g.lacking.entries {
			rt.queue.overtake(large, e.tokens())
		}
		rt.waited(e)
		rt.queue.shares[e.levelKey()].send(e.request.Tenant, e.request.Tokens)
		rt.queue.remove(e.request.ID)
		return true
	case fitness == later, fitness == held:
		e.noWorkerSince = time.Time{}
		e.workMs = max(e.workMs, leastWorkMs)
		if retried || e.behind {
			return false
		}
		if g.tries++; fitness == later {
			g.least = min(g.least, e.tokens())
		}
		g.blocked = g.blocked || g.tries >= triesMost
		g.lacking.entries = append(g.lacking.entries, e)
		g.lacking.starved = g.lacking.starved || e.starved
		return false
	case fitness == excluded:
		if e.noWorkerSince.IsZero() {
			e.noWorkerSince = now
		}
		if now.Sub(e.noWorkerSince) < rt.config.NoWorkerGrace {
			return false
		}
		fallthrough
	default:
		if fitness == tooSlow {
			rt.waited(e)
			if !e.alwaysLate {
				rt.refusedFor(now, e)
			}
		}
		rt.giveUp(e, refusal)
		return true
	}
}

// schedule notes when the queue has to be looked at again, if nothing happens. Some places become free
// without a load report: that another router's request took, or that shares blocks that are cached now.
func (rt *Router) schedule() {
	if rt.queue.wantsPlace() {
		soonest(&rt.queue.due, rt.now.Add(api.ReportSpacing))
	}
	for e := range rt.queue.all() {
		soonest(&rt.queue.due, e.until)
		if !e.noWorkerSince.IsZero() {
			soonest(&rt.queue.due, e.noWorkerSince.Add(rt.config.NoWorkerGrace))
		}
		if tried := e.byReportsSince.Add(rt.config.ReportDoubt); !e.byReportsSince.IsZero() && tried.After(rt.now) {
			soonest(&rt.queue.due, tried)
		}
	}
}

func (rt *Router) giveUp(e *entry, r Refusal) {
	rt.queue.remove(e.request.ID)
	rt.tenants.leave(e.request.Tenant)
	rt.out = append(rt.out, Refuse{e.request.ID, r, e.refused})
}
