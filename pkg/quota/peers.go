package quota

import (
	"hash/fnv"
	"io"
	"iter"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// silentAfter is how long after its last report a router counts as silent.
	silentAfter = 3 * reportEvery
	// lateReport is how long after a router has left its last report may come.
	lateReport = reportEvery / 2
	// maxDeparted bounds the routers that have left whose use is remembered.
	maxDeparted = 32
)

// peer is another router.
type peer struct {
	id       string
	epoch    uint64
	before   bool      // it was there before this router
	unlisted time.Time // since when the mesh does not have it any more; zero: it does
	sequence uint64    // of its last report
	heard    time.Time // when it told the last of what it had to tell; zero: never
	whole    time.Time // when its last whole report came, or began to
	round    uint64    // how many whole ones have come
	uses     map[string]use
}

// use is what a tenant uses at another router, and what that knows of routers that have left.
type use struct {
	here, departed amounts
	round          uint64 // the other router's, when it told
}

// others is what a tenant uses at the other routers. mu is held.
func (l *Limiter) others(now time.Time, name string, limits Limits) (sum amounts) {
	l.depart(now)
	var order []uint64 // made only for routers that are silent
	departed := l.usedByDeparted(now, name, false)
	for _, p := range l.peers {
		uses := p.uses[name]
		if p.silent(now) {
			uses.departed = amounts{}
			if order == nil {
				order = l.order(name)
			}
			rank, _ := slices.BinarySearch(order, place(p.id, name))
			for what, limit := range limits.amounts() {
				uses.here[what] = max(uses.here[what], share(limit, int64(rank), int64(len(order))))
			}
		}
		for what := range sum {
			sum[what] += uses.here[what]
			departed[what] = max(departed[what], uses.departed[what]) // all of them tell of the same
		}
	}
	for what := range sum {
		sum[what] += departed[what]
	}
	return sum
}

// usedByDeparted is what a tenant used in the last minute at routers that have left. All of it counts
// until a minute after they were heard of last, and what ran until they are silent. What the others are
// told lacks those that may tell themselves. mu is held.
func (l *Limiter) usedByDeparted(now time.Time, name string, told bool) (sum amounts) {
	for _, p := range l.departed {
		if told && l.lingers(now, p) && !l.introducedAt.After(p.whole) { // who came after that does not know it
			continue
		}
		here := p.uses[name].here
		if p.silent(now) {
			here[running] = 0
		}
		for what := range sum {
			sum[what] += here[what]
		}
	}
	return sum
}

// awaits says whether this router does not know the others yet, or one that was there before it has not
// told yet what it uses, which may be all there is. That is waited for no longer than it takes to count
// as silent. mu is held.
func (l *Limiter) awaits(now time.Time) bool {
	if l.joined.IsZero() {
		return now.Sub(l.zero) < silentAfter
	}
	if now.Sub(l.joined) >= silentAfter {
		return false
	}
	for _, p := range l.peers {
		if p.before && p.heard.IsZero() {
			return true
		}
	}
	return false
}

// lingers says whether a router that has left may still be there, as one that etcd does not reach: one
// that goes on telling is taken in again with its first report after lateReport. mu is held.
func (l *Limiter) lingers(now time.Time, p *peer) bool {
	return now.Sub(p.unlisted) < lateReport+reportEvery && l.peers[p.id] == nil
}

// sharing are the routers that may share limits with this one. mu is held.
func (l *Limiter) sharing(now time.Time) iter.Seq[*peer] {
	return func(yield func(*peer) bool) {
		for _, p := range l.peers {
			if !yield(p) {
				return
			}
		}
		for _, p := range l.departed {
			if l.lingers(now, p) && !yield(p) {
				return
			}
		}
	}
}

// alone says whether there is no other router. mu is held.
func (l *Limiter) alone(now time.Time) bool {
	for range l.sharing(now) {
		return false
	}
	return true
}

// telling is how many routers tell what they use, this one included. mu is held.
func (l *Limiter) telling(now time.Time) (routers int64) {
	routers = 1
	for p := range l.sharing(now) {
		if !p.silent(now) {
			routers++
		}
	}
	return routers
}

// untilTurn is how long it is until this router's turn in a tenant's order of so many; 0: it is now. mu
// is held.
func (l *Limiter) untilTurn(now time.Time, name string, routers int64) time.Duration {
	own := place(l.self, name)
	before, first, began := int64(0), own, l.whole
	for p := range l.sharing(now) {
		if p.silent(now) {
			continue
		}
		other := place(p.id, name)
		if other < own {
			before++
		}
		if other < first {
			first, began = other, p.whole
		}
	}
	// A turn passes before the first: one may have counted a request just before it heard of that report.
	each := min(turn, (reportEvery-turn)/time.Duration(routers))
	open, since := time.Duration(float64(each)*openShare), now.Sub(began.Add(turn))
	if since < 0 || since > reportEvery { // too soon; or a report was lost, and the others may have another time
		return max(-since, open)
	}
	all := time.Duration(routers) * each
	if since = (since + all - time.Duration(before)*each) % all; since < open {
		return 0
	}
	return all - since
}

// silent says whether a router tells nothing.
func (p *peer) silent(now time.Time) bool { return now.Sub(p.heard) > silentAfter }

// place is where a router stands in a tenant's order.
func place(router, tenant string) uint64 {
	sum := fnv.New64a()
	_, _ = io.WriteString(sum, tenant+"\x00"+router) // which does not fail
	return sum.Sum64() * 0x9e3779b97f4a7c15          // the last bytes alone would decide
}

// order is where all routers stand in a tenant's order, the first first. mu is held.
func (l *Limiter) order(tenant string) []uint64 {
	order := []uint64{place(l.self, tenant)}
	for id := range l.peers {
		order = append(order, place(id, tenant))
	}
	slices.Sort(order)
	return order
}

// share is the part of a limit of the router with so many before it. All parts together are the limit: what is
// left over goes to the first routers, and of a limit below their number the others have nothing.
func share(limit, before, routers int64) int64 {
	if before < limit%routers {
		return limit/routers + 1
	}
	return limit / routers
}

// Routers takes in which routers the mesh has: their epochs, by id, this one included or not.
func (l *Limiter) Routers(epochs map[string]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	first := l.joined.IsZero()
	if first {
		l.joined = now
	}
	for id, p := range l.peers {
		switch epoch, there := epochs[id]; {
		case there && epoch == p.epoch:
			p.unlisted = time.Time{}
		case there || p.unlisted.IsZero():
			p.unlisted = now
			delete(l.peers, id)
			l.departed = append(l.departed, p)
		}
	}
	l.departed = slices.DeleteFunc(l.departed, func(p *peer) bool {
		back := epochs[p.id] == p.epoch && l.peers[p.id] == nil // it had only lost its lease
		if back {
			p.unlisted = time.Time{}
			l.takeBack(p)
		}
		return back
	})
	l.depart(now)
	for id, epoch := range epochs {
		if id != l.self && l.peers[id] == nil {
			l.peers[id] = &peer{id: id, epoch: epoch, before: first}
			l.introduced, l.introducedAt = true, now
		}
	}
	if l.introduced {
		l.wake()
	}
}

// takeBack counts a router like the others again, and has all of them told soon that it is not among those
// that have left: it counted twice as long as they say so. mu is held.
func (l *Limiter) takeBack(p *peer) {
	l.peers[p.id], l.introduced = p, true
	l.wake()
}

// depart has those that the mesh does not have any more and that went on telling leave once they tell
// nothing. It forgets those that told nothing for a minute. mu is held.
func (l *Limiter) depart(now time.Time) {
	for id, p := range l.peers {
		if !p.unlisted.IsZero() && p.silent(now) {
			delete(l.peers, id)
			l.departed = append(l.departed, p)
		}
	}
	l.departed = slices.DeleteFunc(l.departed, func(p *peer) bool { return now.Sub(p.heard) >= windowLength })
	l.departed = l.departed[max(0, len(l.departed)-maxDeparted):]
	if l.alone(now) {
		clear(l.changed)
	}
}

// from is the router that a report is of; nil: the mesh has not had it lately. One that goes on telling after
// it has left, as one that etcd does not reach, counts like the others again. mu is held.
func (l *Limiter) from(now time.Time, origin *controlv1.Origin) *peer {
	is := func(p *peer) bool { return p.id == origin.GetId() && p.epoch == origin.GetEpoch() }
	there := l.peers[origin.GetId()]
	if there != nil && is(there) {
		return there
	}
	i := slices.IndexFunc(l.departed, is)
	if i < 0 {
		return nil
	}
	p := l.departed[i]
	if there == nil && now.Sub(p.unlisted) >= lateReport {
		l.departed = slices.Delete(l.departed, i, i+1)
		l.takeBack(p)
	}
	return p
}
