package routing

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// entry is a request that waits.
type entry struct {
	request  Request // its MaxNew is what the context of the workers that were searched last leaves
	maxNew   int     // MaxNew as it came
	enqueued time.Time
	// until is when waiting ends: the request's own deadline, the latest first
	// token that it wants, or the longest wait.
	until time.Time
	// noWorkerSince is since when no worker could ever take it; zero: one could.
	noWorkerSince time.Time
	// byReportsSince is since when load reports alone kept a worker from it, as of the last search; zero: they
	// did not.
	byReportsSince time.Time
	// byReports: the present search finds that they do.
	byReports bool
	// pool is the role that it waits for.
	pool controlv1.Role
	// prefillMayAggregate: where pool is decode, some prefill worker may do all of it, too.
	prefillMayAggregate bool
	number              uint64
	defaultObjective    bool          // it asked for none, and has that of the default class
	tpot                time.Duration // that it asked for, which workers are told; 0: none
	rank                int           // of its class
	// version that its workers have to have; zero: none is known.
	version Version
	// prefixes is who holds how much of its prompt.
	prefixes map[BlockKey]*prefix
	// workMs is what its prompt was predicted to take when workers were last looked at for it; 0:
	// they were not yet.
	workMs float64
	// waitMs is how long it was predicted to wait for those that go before it, when it came.
	waitMs float64
	// asksToken: it was held against an objective of the time of a token when it came; tokenLate: it
	// was let in, and misses that now.
	asksToken, tokenLate bool
	// observed: it is one of those of inTime. alwaysLate: as of the last search, it would be late without others, too.
	observed, alwaysLate bool
	// behind: it may not go before others, and is looked at only to see whether it will be in time.
	behind bool
	// barred: it may not go at all, since what goes now keeps another one waiting.
	barred bool
	// waitsFor is what it waited for at first, for people; empty: it has not waited for a worker.
	waitsFor string
	// refused is the decision that refuses it, as of the last search; nil: there is none.
	refused *controlv1.Decision
	// hedges is what it is a hedged attempt of; nil: it is none.
	hedges *Hedge
	// overtaken is how many tokens of requests went before it while it found no place, and starved
	// whether nobody else is to.
	overtaken int
	starved   bool
}

// seeks is what it waits for, for people.
func (e *entry) seeks() string {
	if e.pool == controlv1.Role_ROLE_DECODE && e.prefillMayAggregate {
		return "decode or prefill worker"
	}
	return api.Name(e.pool) + " worker"
}

// tokens is how much KV a request wants at most.
func (e *entry) tokens() int { return e.request.Tokens + e.request.MaxNew }

// before orders the entries of one tenant: those with the earliest deadline first, then as they
// came.
func (e *entry) before(o *entry) bool {
	return cmp.Or(e.until.Compare(o.until), e.request.Arrived.Compare(o.request.Arrived), cmp.Compare(e.number, o.number)) < 0
}

// levelKey is what the requests of one level have in common: their priority, and the rank of their class.
type levelKey struct {
	priority int32
	rank     int
}

func (e *entry) levelKey() levelKey { return levelKey{e.request.Priority, e.rank} }

// level is what waits of one priority and class. Higher ones go first.
type level struct {
	levelKey

	lines []*line // as their tenants came
}

// line is what waits of one tenant, the first to go first.
type line struct {
	tenant  string
	share   *tenantShare
	entries []*entry
	passed  int // how many of them found no place in this pump
}

// queue is the requests that wait. Levels go one after the other, tenants within a level by what
// they were served, so that each gets an equal share of the tokens, and the requests of a tenant
// by their deadlines.
type queue struct {
	ids    map[string]*entry
	levels []*level
	shares map[levelKey]*shares // those of which something waits or runs
	waits  trackRecord          // of predictions of how long requests wait for others
	// tokenMargin is how much longer than predicted a token is taken to be where a request comes that has
	// to wait: by its turn others may decode.
	tokenMargin trackRecord
	// starved are those that wait and are to go before others, as they came to be.
	starved []*entry
	// allHeld: nobody waits but for workers that have enough to do.
	allHeld bool
	// due is when something changes for one that waits, as of the last pump; zero if none waits.
	due time.Time
}

// wantsPlace reports whether somebody waits for a place at a worker, and not just for one that has less to do.
func (q *queue) wantsPlace() bool { return len(q.ids) > 0 && !q.allHeld }

// level is where requests like e wait, -1 if nobody does.
func (q *queue) level(e *entry) (at int, is bool) {
	at = sort.Search(len(q.levels), func(i int) bool {
		l := q.levels[i]
		return l.priority < e.request.Priority || l.priority == e.request.Priority && l.rank >= e.rank
	})
	return at, at < len(q.levels) && q.levels[at].levelKey == e.levelKey()
}

// sharesOf are the shares of a level.
func (q *queue) sharesOf(of levelKey) *shares {
	s := q.shares[of]
	if s == nil {
		s = &shares{tenants: make(map[string]*tenantShare), owing: make(map[string]float64)}
		q.shares[of] = s
	}
	return s
}

// dropShares forgets those of a level of which nothing waits or runs.
func (q *queue) dropShares(of levelKey) {
	if s := q.shares[of]; s != nil && len(s.tenants) == 0 {
		delete(q.shares, of)
	}
}

// ended charges a tenant for the answer of a request of a level.
func (q *queue) ended(of levelKey, tenant string, tokens int) {
	q.shares[of].end(tenant, tokens)
	q.dropShares(of)
}

func (q *queue) insert(e *entry) {
	at, is := q.level(e)
	if !is {
		q.levels = slices.Insert(q.levels, at, &level{levelKey: e.levelKey()})
	}
	l, share := q.levels[at], q.sharesOf(e.levelKey()).wait(e.request.Tenant)
	i := slices.IndexFunc(l.lines, func(l *line) bool { return l.tenant == e.request.Tenant })
	if i < 0 {
		i, l.lines = len(l.lines), append(l.lines, &line{tenant: e.request.Tenant, share: share})
	}
	of := l.lines[i]
	of.entries = slices.Insert(of.entries, sort.Search(len(of.entries), func(i int) bool { return e.before(of.entries[i]) }), e)
	q.ids[e.request.ID] = e
}

func (q *queue) remove(id string) *entry {
	e, ok := q.ids[id]
	if !ok {
		return nil
	}
	delete(q.ids, id)
	at, _ := q.level(e)
	l := q.levels[at]
	i := slices.IndexFunc(l.lines, func(l *line) bool { return l.tenant == e.request.Tenant })
	of := l.lines[i]
	// The order is total, so the entry is where the search ends.
	j := sort.Search(len(of.entries), func(i int) bool { return !of.entries[i].before(e) })
	of.entries = slices.Delete(of.entries, j, j+1)
	if len(of.entries) == 0 {
		l.lines = slices.Delete(l.lines, i, i+1)
	}
	if len(l.lines) == 0 {
		q.levels = slices.Delete(q.levels, at, at+1)
	}
	q.shares[e.levelKey()].leave(e.request.Tenant)
	q.dropShares(e.levelKey())
	if e.starved {
		q.starved = slices.DeleteFunc(q.starved, func(o *entry) bool { return o == e })
	}
	return e
}

// firsts are those of a level whose turn would be before e's, one of each tenant.
func (q *queue) firsts(l *level, e *entry) (out []*entry) {
	served := q.shares[l.levelKey].tenants[e.request.Tenant].served
	for _, of := range l.lines {
		first := of.entries[0]
		if first != e && (of.tenant == e.request.Tenant || of.share.served < served) {
			out = append(out, first)
		}
	}
	return out
}

// overtake takes in that a request of so many tokens went before e, which found no place.
func (q *queue) overtake(e *entry, tokens int) {
	if e.overtaken += tokens; e.overtaken > overtakesMost*e.tokens() && !e.starved {
		e.starved = true
		q.starved = append(q.starved, e)
	}
}

// lastNew is the last of those that were not let in before; nil: all were.
func (of *line) lastNew() *entry {
	for _, e := range slices.Backward(of.entries) {
		if e.request.Attempt == 0 {
			return e
		}
	}
	return nil
}

// last is who gives way to e where no more may wait: of the lowest level, the last request of the tenant
// with the most, if the level is below e's or e's tenant has fewer. Those that were let in before do not:
// then the tenant with the next most does, or a higher level. Nil: nobody does.
func (q *queue) last(e *entry) (last *entry) {
	at, same := q.level(e)
	for i, l := range slices.Backward(q.levels) {
		if i < at { // e's would be below
			break
		}
		most := 0
		if i == at && same {
			most = 1
			for _, of := range l.lines {
				if of.tenant == e.request.Tenant {
					most += len(of.entries)
				}
			}
		}
		for _, of := range l.lines {
			if len(of.entries) <= most {
				continue
			}
			if theirs := of.lastNew(); theirs != nil {
				last, most = theirs, len(of.entries)
			}
		}
		if last != nil {
			break
		}
	}
	return last
}

// all are those that wait, by level and tenant. The queue may not be changed meanwhile.
func (q *queue) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, l := range q.levels {
			for _, of := range l.lines {
				for _, e := range of.entries {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

// ahead is how many go before e, and what their prompts take by what is predicted of each: all of
// higher levels, and those of e's whose turn comes first, as in pumpLevel. The turn of a request comes
// once its tenant was served what the tenant was so far, and its earlier requests.
func (q *queue) ahead(e *entry) (requests int, ms float64) {
	at, is := q.level(e)
	for _, l := range q.levels[:at] {
		for _, of := range l.lines {
			requests += len(of.entries)
			for _, other := range of.entries {
				ms += other.workMs
			}
		}
	}
	if !is {
		return requests, ms
	}
	lines := q.levels[at].lines
	own := slices.IndexFunc(lines, func(of *line) bool { return of.tenant == e.request.Tenant })
	turn := lines[own].share.served
	for _, other := range lines[own].entries {
		if !other.before(e) {
			break
		}
		requests++
		ms += other.workMs
		turn += float64(other.request.Tokens)
	}
	for i, of := range lines {
		if i == own {
			continue
		}
		its := of.share.served
		for _, other := range of.entries {
			if its > turn || its == turn && i > own {
				break
			}
			requests++
			ms += other.workMs
			its += float64(other.request.Tokens)
		}
	}
	return requests, ms
}
