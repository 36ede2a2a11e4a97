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
// the share waits until the others must have heard of those before it. Where less is left than
// such a request at each router, they take turns: each tenant has an order of routers, and the time
// since the last whole report of the first is divided among them. In its turn a router counts the
// request, tells the others, and admits it when they must have heard of it, if all still is within
// the limit.
//
// A router that has been silent for a while counts as if it had used its share. One that joins first
// waits, for a while, for a whole report of each router that was there before it. What a router has
// used counts for a minute after it has left, and routers that join later are told of it. A router
// that etcd does not reach leaves the mesh but goes on reporting: it counts like the others again. So
// they share with a router that has left until its next report would have come.
package quota

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// unheardFor is how long others may not have heard of what they were told.
	unheardFor = 100 * time.Millisecond
	// turn is how long it is from one router's turn to the next one's, unless there are so many that
	// not all would have one between two reports. In its first openShare the router counts
	// requests. In the rest the others hear of them.
	turn      = 50 * time.Millisecond
	openShare = 0.4
	// patience is how long a request waits for what others tell, once this router knows them.
	patience = 2 * time.Second
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
	self    string
	logger  *slog.Logger
	sayFull sync.Once
	zero    time.Time
	dirty   chan struct{} // has one when there is something to tell

	mu         sync.Mutex
	tenants    map[string]*tenant
	peers      map[string]*peer // the other routers, by id
	departed   []*peer          // those that were, less than a minute ago
	whole      time.Time        // of the last whole report of this one
	joined     time.Time        // when it first knew the routers; zero: it does not yet
	awaited    time.Time        // when it last did not know what they use
	changed    map[string]bool  // tenants whose use has changed since the last report
	introduced bool             // the next report is a whole one

	introducedAt time.Time // when a router joined last
}

// tenant is what one uses at this router.
type tenant struct {
	minute  [running]window
	running int64
	// counted is what the others count at least, and told what they were told in the last
	// unheardFor, the oldest first.
	counted  amounts
	told     []told
	lastTold time.Time // when they were told of it last
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

// New returns a limiter for the router with this id, which knows of no other. logger may be nil.
func New(self string, logger *slog.Logger) *Limiter {
	return &Limiter{
		self: self, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)), zero: time.Now(), dirty: make(chan struct{}, 1),
		tenants: make(map[string]*tenant), peers: make(map[string]*peer), changed: make(map[string]bool),
	}
}

// Charge is what a request was counted with.
type Charge struct {
	limiter *Limiter
	tenant  string
	tokens  int64
	slot    int64
	counted time.Time
	once    sync.Once
}

// Admit counts a request in, with the tokens that it may have at most, or returns an *Exceeded,
// or ctx's error. It waits only if other routers may be about to use what is left.
func (l *Limiter) Admit(ctx context.Context, name string, limits Limits, mostTokens int64) (*Charge, error) {
	cost := amounts{1, mostTokens, 1}
	began := time.Now()
	for {
		charge, wait, err := l.try(name, limits, cost, began)
		if wait == 0 {
			return charge, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			charge.TakeBack()
			return nil, ctx.Err()
		}
		if charge != nil && charge.within(limits) {
			return charge, nil
		}
		charge.TakeBack()
	}
}

// try is one try of Admit, which began at a time. wait: for so long, then try again; with a charge, that one
// is admitted if the limits still hold then.
func (l *Limiter) try(name string, limits Limits, cost amounts, began time.Time) (_ *Charge, wait time.Duration, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	t := l.tenant(now, name)
	own, others := t.uses(), l.others(now, name, limits)
	routers := l.telling(now)
	awaits := l.awaits(now)
	if awaits {
		l.awaited = now
	}
	if began.Before(l.awaited) {
		began = l.awaited
	}
	var unsure *Exceeded
	turns := false
	for what, limit := range limits.amounts() {
		if limit == 0 {
			continue
		}
		free := limit - others[what] - t.counted[what]
		more := own[what] + cost[what] - t.counted[what]
		var least time.Duration
		switch {
		case awaits:
			least = reportLeast
		case more > free:
			return nil, 0, &Exceeded{What: names[what], Limit: limit, RetryAfter: l.retryAfter(now, t, what, more-free)}
		case more <= 0, more*routers <= free:
			continue
		case cost[what]*routers <= free: // the others have to hear of what was admitted before
			least = unheardFor
		default:
			turns, least = true, l.untilTurn(now, name, routers)
		}
		unsure = &Exceeded{What: names[what], Limit: limit, RetryAfter: time.Second}
		wait = max(wait, least)
	}
	if unsure != nil && wait >= patience-now.Sub(began) {
		return nil, 0, unsure
	}
	if wait > 0 {
		return nil, wait, nil
	}
	at := l.slot(now)
	t.minute[requests].add(at, cost[requests])
	t.minute[tokens].add(at, cost[tokens])
	t.running++
	l.tell(name)
	if turns {
		wait = unheardFor
	}
	return &Charge{limiter: l, tenant: name, tokens: cost[tokens], slot: at, counted: now}, wait, nil
}

// within says whether the others were told of the request, and all that is known is within the limits.
func (c *Charge) within(limits Limits) bool {
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	t := l.tenant(now, c.tenant)
	if t.lastTold.Before(c.counted) {
		return false
	}
	own, others := t.uses(), l.others(now, c.tenant, limits)
	for what, limit := range limits.amounts() {
		if limit > 0 && own[what]+others[what] > limit {
			return false
		}
	}
	return true
}

// TakeBack has the request not counted, in place of Done or after it. A nil Charge has nothing to take back.
func (c *Charge) TakeBack() {
	if c == nil {
		return
	}
	c.Done(0)
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant(time.Now(), c.tenant).minute[requests].add(c.slot, -1)
	l.tell(c.tenant)
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
		return windowLength
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
	for len(t.told) > 0 && (now.Sub(t.told[0].at) >= unheardFor || l.alone(now)) {
		t.counted, t.told = t.told[0].uses, t.told[1:]
	}
	for _, told := range t.told { // they may have heard of it
		for what, n := range told.uses {
			t.counted[what] = min(t.counted[what], n)
		}
	}
	return t
}
