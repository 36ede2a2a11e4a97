// Package quota counts what tenants use, requests and tokens a minute and requests at a time,
// and refuses what would be too much, over several routers together.
//
// The router imports it. A Limiter's Run is one goroutine, of its caller; Admit may wait in the
// goroutine that calls it. Its one lock is a leaf.
//
// # Several routers
//
// A router tells the others what each tenant uses there, soon after that grew and each second, and
// they count it. So up to what they count a router admits at once. Of what nobody counts yet it
// admits its equal share: then all of them together admit no more than there is. A request above
// the share waits until the others must have heard of those before it. Where too little is left
// for one request at each router, they may take it one after the other: each tenant has an order
// of routers, in which each waits longer than the one before.
//
// A router that has not been heard of for a while counts as if it had used its share. One that
// joins waits a while for a whole report of each that was there before it. What a router used that
// has left counts for a minute, and those that come later are told of it.
package quota

import (
	"context"
	"hash/fnv"
	"io"
	"slices"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// reportLeast is the shortest time between two reports.
	reportLeast = 20 * time.Millisecond
	// reportEvery is the longest.
	reportEvery = time.Second
	// unheardFor is how long others may not have heard of what they were told.
	unheardFor = 100 * time.Millisecond
	// turn is how much longer one router waits than the one before it.
	turn = 50 * time.Millisecond
	// silentAfter is how long after its last report a router counts as silent.
	silentAfter = 3 * reportEvery
	// patience is how long a request waits for what others tell.
	patience = 2 * time.Second
	// maxTenants bounds the tenants of a report, and of those that are taken in.
	maxTenants = 4096
	// maxLeft bounds the routers that have left whose use is remembered.
	maxLeft = 32
)

// What is counted. The first two are sums over a minute.
const (
	requests = iota
	tokens
	running
	dimensions
)

var names = [dimensions]string{"requests", "tokens", "concurrency"}

// amounts are one of each.
type amounts [dimensions]int64

// Limiter counts what tenants use. It is safe for concurrent use.
type Limiter struct {
	self  string
	zero  time.Time
	dirty chan struct{} // has one when there is something to tell

	mu         sync.Mutex
	tenants    map[string]*tenant
	peers      map[string]*peer // the other routers, by id
	left       []*peer          // those that were, less than a minute ago
	joined     time.Time        // when it first knew the routers; zero: it does not yet
	changed    map[string]bool  // tenants whose use has changed since the last report
	introduced bool             // the next report is a whole one
}

// tenant is what one uses at this router.
type tenant struct {
	minute  [running]window
	running int64
	// counted is what the others count at least, and told what they were told in the last
	// unheardFor, the oldest first.
	counted amounts
	told    []told
	// free is what nobody counted as of the last look, and changed since when.
	free    amounts
	changed [dimensions]time.Time
}

// told is what the others were told at a time.
type told struct {
	at   time.Time
	uses amounts
}

// uses is what it uses here.
func (t *tenant) uses() amounts {
	return amounts{t.minute[requests].sum, t.minute[tokens].sum, t.running}
}

// peer is another router.
type peer struct {
	id       string
	epoch    uint64
	before   bool      // it was there before this router
	sequence uint64    // of its last report
	heard    time.Time // when that came; zero: never
	uses     map[string]use
}

// use is what a tenant uses at another router, and what that knows of routers that have left.
type use struct{ here, left amounts }

// New returns a limiter for the router with this id, which knows of no other.
func New(self string) *Limiter {
	return &Limiter{
		self: self, zero: time.Now(), dirty: make(chan struct{}, 1),
		tenants: make(map[string]*tenant), peers: make(map[string]*peer), changed: make(map[string]bool),
	}
}

// Charge is what a request was counted with.
type Charge struct {
	limiter *Limiter
	tenant  string
	tokens  int64
	slot    int64
	once    sync.Once
}

// Admit counts a request in, with the tokens that it may have at most, or returns an *Exceeded,
// or ctx's error. It waits only if other routers may be about to use what is left.
func (l *Limiter) Admit(ctx context.Context, name string, limits Limits, mostTokens int64) (*Charge, error) {
	cost := amounts{1, mostTokens, 1}
	began := time.Now()
	for {
		charge, wait, err := l.try(name, limits, cost, time.Since(began))
		if wait == 0 {
			return charge, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// try is one try of Admit; wait: for so long.
func (l *Limiter) try(name string, limits Limits, cost amounts, waited time.Duration) (_ *Charge, wait time.Duration, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	t := l.tenant(now, name)
	own, others := t.uses(), l.others(now, name, limits)
	routers, before := l.order(now, name)
	awaits := l.awaits(now)
	var unsure *Exceeded
	for what, limit := range limits.amounts() {
		if limit == 0 {
			continue
		}
		free := limit - others[what] - t.counted[what]
		if free != t.free[what] {
			t.free[what], t.changed[what] = free, now
		}
		least, more := time.Duration(0), own[what]+cost[what]-t.counted[what]
		switch {
		case awaits:
			least = reportLeast
		case more > free:
			return nil, 0, &Exceeded{What: names[what], Limit: limit, RetryAfter: l.retryAfter(now, t, what, more-free)}
		case more <= 0, more*routers <= free:
		case cost[what]*routers <= free: // the others have to hear of what was admitted before
			least = unheardFor
		default:
			least = time.Duration(before+1)*turn - min(waited, now.Sub(t.changed[what]))
		}
		if least > wait {
			wait, unsure = least, &Exceeded{What: names[what], Limit: limit, RetryAfter: time.Second}
		}
	}
	if wait > 0 && waited < patience {
		return nil, wait, nil
	}
	if wait > 0 {
		return nil, 0, unsure
	}
	at := l.slot(now)
	t.minute[requests].add(at, cost[requests])
	t.minute[tokens].add(at, cost[tokens])
	t.running++
	l.tell(name)
	return &Charge{limiter: l, tenant: name, tokens: cost[tokens], slot: at}, 0, nil
}

// Done counts the request out: it had so many tokens. Only the first call counts; a nil Charge has
// nothing to count.
func (c *Charge) Done(tokensUsed int64) {
	if c == nil {
		return
	}
	c.once.Do(func() {
		l := c.limiter
		l.mu.Lock()
		defer l.mu.Unlock()
		t := l.tenant(time.Now(), c.tenant)
		t.running--
		t.minute[tokens].add(c.slot, min(tokensUsed-c.tokens, 0)) // the others hear of it with the next whole report
	})
}

// Left is what a tenant has left of its limits a minute.
type Left struct {
	Requests, Tokens int64
	// RequestsReset and TokensReset are when all of it is there again.
	RequestsReset, TokensReset time.Duration
}

// Left says what a tenant has left of its limits.
func (l *Limiter) Left(name string, limits Limits) Left {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	t := l.tenant(now, name)
	used, own := l.others(now, name, limits), t.uses()
	for what := range used {
		used[what] += own[what]
	}
	return Left{
		Requests: max(limits.RequestsPerMinute-used[requests], 0), RequestsReset: l.reset(now, t, requests, used[requests]),
		Tokens: max(limits.TokensPerMinute-used[tokens], 0), TokensReset: l.reset(now, t, tokens, used[tokens]),
	}
}

func (l *Limiter) reset(now time.Time, t *tenant, what int, used int64) time.Duration {
	if used == 0 {
		return 0
	}
	if t.minute[what].sum < used { // others used some, nobody knows when
		return Per
	}
	return l.retryAfter(now, t, what, used)
}

// retryAfter is when an amount is free again, by what this router knows.
func (l *Limiter) retryAfter(now time.Time, t *tenant, what int, amount int64) time.Duration {
	if what == running {
		return time.Second
	}
	next := l.zero.Add(time.Duration(l.slot(now)) * slot)
	return next.Add(time.Duration(t.minute[what].until(amount)) * slot).Sub(now)
}

// amounts are the limits by what they limit.
func (l Limits) amounts() amounts {
	return amounts{l.RequestsPerMinute, l.TokensPerMinute, l.Concurrency}
}

// slot is the number of a time's slot.
func (l *Limiter) slot(now time.Time) int64 { return int64(now.Sub(l.zero) / slot) }

// tenant is what one uses here, as of now. mu is held.
func (l *Limiter) tenant(now time.Time, name string) *tenant {
	t := l.tenants[name]
	if t == nil {
		t = &tenant{}
		l.tenants[name] = t
	}
	for i := range t.minute {
		t.minute[i].advance(l.slot(now))
	}
	for len(t.told) > 0 && (now.Sub(t.told[0].at) >= unheardFor || len(l.peers) == 0) {
		t.counted, t.told = t.told[0].uses, t.told[1:]
	}
	for _, told := range t.told { // they may have heard of it
		for what, n := range told.uses {
			t.counted[what] = min(t.counted[what], n)
		}
	}
	return t
}

// others is what a tenant uses at the other routers. mu is held.
func (l *Limiter) others(now time.Time, name string, limits Limits) (sum amounts) {
	share := int64(len(l.peers) + 1)
	left := l.usedByLeft(now, name)
	for _, p := range l.peers {
		uses := p.uses[name]
		if p.silent(now) {
			uses.left = amounts{}
			for what, limit := range limits.amounts() {
				uses.here[what] = max(uses.here[what], (limit+share-1)/share)
			}
		}
		for what := range sum {
			sum[what] += uses.here[what]
			left[what] = max(left[what], uses.left[what]) // all of them tell of the same
		}
	}
	for what := range sum {
		sum[what] += left[what]
	}
	return sum
}

// usedByLeft is what a tenant used in the last minute at routers that have left. All of it counts
// until a minute after they were heard of last. mu is held.
func (l *Limiter) usedByLeft(now time.Time, name string) (sum amounts) {
	for _, p := range l.left {
		if now.Sub(p.heard) >= Per {
			continue
		}
		sum[requests] += p.uses[name].here[requests]
		sum[tokens] += p.uses[name].here[tokens]
	}
	return sum
}

// awaits says whether a router that was there before this one has not told yet what it uses, which
// may be all there is. It is waited for no longer than it takes to count as silent. mu is held.
func (l *Limiter) awaits(now time.Time) bool {
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

// order is how many routers tell what they use, this one included, and how many of them come
// before this one in a tenant's order. mu is held.
func (l *Limiter) order(now time.Time, name string) (routers, before int64) {
	routers = 1
	own := place(l.self, name)
	for id, p := range l.peers {
		if p.silent(now) {
			continue
		}
		routers++
		if other := place(id, name); other < own || other == own && id < l.self {
			before++
		}
	}
	return routers, before
}

// silent says whether a router tells nothing.
func (p *peer) silent(now time.Time) bool { return now.Sub(p.heard) > silentAfter }

func place(router, tenant string) uint64 {
	sum := fnv.New64a()
	_, _ = io.WriteString(sum, tenant+"\x00"+router) // which does not fail
	return sum.Sum64() * 0x9e3779b97f4a7c15          // the last bytes alone would decide
}

// tell has a report sent. mu is held.
func (l *Limiter) tell(name string) {
	if len(l.peers) == 0 {
		return
	}
	l.changed[name] = true
	l.wake()
}

// wake has a report sent soon.
func (l *Limiter) wake() {
	select {
	case l.dirty <- struct{}{}:
	default:
	}
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
		if epoch, there := epochs[id]; !there || epoch != p.epoch {
			delete(l.peers, id)
			l.left = append(l.left, p)
		}
	}
	l.left = slices.DeleteFunc(l.left, func(p *peer) bool {
		if epochs[p.id] == p.epoch && l.peers[p.id] == nil { // it had only lost its lease
			l.peers[p.id] = p
			return true
		}
		return now.Sub(p.heard) >= Per
	})
	l.left = l.left[max(0, len(l.left)-maxLeft):]
	for id, epoch := range epochs {
		if id != l.self && l.peers[id] == nil {
			l.peers[id] = &peer{id: id, epoch: epoch, before: first}
			l.introduced = true
		}
	}
	if len(l.peers) == 0 {
		clear(l.changed)
		return
	}
	if l.introduced {
		l.wake()
	}
}

// Heard takes in the report of another router. One of a router that the mesh does not have, or
// that is older than another, counts for nothing, nor does what comes before the first whole one.
func (l *Limiter) Heard(report *controlv1.TenantReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	origin := report.GetOrigin()
	p := l.peers[origin.GetId()]
	if p == nil || p.epoch != origin.GetEpoch() || p.sequence >= origin.GetSequence() || p.uses == nil && !report.GetWhole() {
		return
	}
	p.sequence, p.heard = origin.GetSequence(), time.Now()
	if report.GetWhole() {
		p.uses = make(map[string]use)
	}
	for _, u := range report.GetTenants() {
		if _, known := p.uses[u.GetTenant()]; known || len(p.uses) < maxTenants {
			p.uses[u.GetTenant()] = use{
				here: amounts{bounded(u.GetRequests()), bounded(u.GetTokens()), bounded(u.GetRunning())},
				left: amounts{bounded(u.GetLeftRequests()), bounded(u.GetLeftTokens())},
			}
		}
	}
}

// bounded keeps sums of what others say from overflowing.
func bounded(n uint64) int64 { return int64(min(n, 1<<48)) }

// Run has publish send reports while there are other routers, until ctx ends. It also forgets
// tenants that use nothing.
func (l *Limiter) Run(ctx context.Context, publish func(*controlv1.TenantReport)) {
	timer := time.NewTimer(reportEvery)
	defer timer.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		whole := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			whole = true
			timer.Reset(reportEvery)
		case <-l.dirty:
		}
		if report := l.report(whole); report != nil {
			publish(report)
		}
		pause.Reset(reportLeast)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// report is what to tell the others; nil: there are none.
func (l *Limiter) report(whole bool) *controlv1.TenantReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if whole = whole || l.introduced; whole {
		l.introduced = false
		for name := range l.tenants {
			t := l.tenant(now, name)
			if t.running == 0 && t.minute[requests].sum == 0 && t.minute[tokens].sum == 0 {
				delete(l.tenants, name)
				continue
			}
			if len(l.peers) > 0 {
				l.changed[name] = true
			}
		}
	}
	if len(l.peers) == 0 {
		return nil
	}
	if whole {
		l.tellOfLeft(now)
	}
	report := &controlv1.TenantReport{Whole: whole}
	for name := range l.changed {
		if len(report.Tenants) == maxTenants {
			break
		}
		delete(l.changed, name)
		t := l.tenant(now, name)
		uses, left := t.uses(), l.usedByLeft(now, name)
		t.told = append(t.told, told{now, uses})
		report.Tenants = append(report.Tenants, &controlv1.TenantUse{
			Tenant: name, Requests: uint64(uses[requests]), Tokens: uint64(uses[tokens]), Running: uint64(uses[running]),
			LeftRequests: uint64(left[requests]), LeftTokens: uint64(left[tokens]),
		})
	}
	return report
}

// tellOfLeft has the next report tell of the tenants of routers that have left. mu is held.
func (l *Limiter) tellOfLeft(now time.Time) {
	for _, p := range l.left {
		for name := range p.uses {
			if now.Sub(p.heard) < Per {
				l.changed[name] = true
			}
		}
	}
}
