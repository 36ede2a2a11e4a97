package quota

import "time"

// Need is what a call needs at least. What is 0 counts as 1.
type Need struct {
	Requests, Tokens int64
	// AtOnce is how many of the requests run at a time.
	AtOnce int64
}

// Over returns an *Exceeded if a call that needs so much would be refused, so that nothing need be
// spent on it. It counts nothing.
func (l *Limiter) Over(name string, limits Limits, need Need) error {
	cost := amounts{max(need.Requests, 1), max(need.Tokens, 1), max(need.AtOnce, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.awaits(now) {
		return nil
	}
	t := l.tenant(now, name)
	own, others := t.uses(), l.others(now, name, limits)
	for what, limit := range limits.amounts() {
		if more := own[what] + others[what] + cost[what] - limit; limit > 0 && more > 0 {
			return &Exceeded{What: names[what], Limit: limit, RetryAfter: l.retryAfter(now, t, what, more)}
		}
	}
	return nil
}

// Spend counts a request without tokens that takes no place among those that run, or returns an
// *Exceeded. It does not wait for what other routers tell.
func (l *Limiter) Spend(name string, limits Limits) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if err := l.past(now, name, limits, 0); err != nil {
		return err
	}
	l.tenant(now, name).minute[requests].add(l.slot(now), 1)
	l.tell(name)
	return nil
}

// Past returns an *Exceeded if one more request would be more than so many above the limit. Only
// requests that Count counts can be above it. It counts nothing.
func (l *Limiter) Past(name string, limits Limits, over int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.past(time.Now(), name, limits, over)
}

// past is Past. It never refuses a tenant that has had fewer requests here than may be above the limit:
// while other routers are silent, this one may have no share of the limit. mu is held.
func (l *Limiter) past(now time.Time, name string, limits Limits, over int64) error {
	t := l.tenant(now, name)
	own := t.minute[requests].sum
	more := own + l.others(now, name, limits)[requests] + 1 - limits.RequestsPerMinute - over
	if limits.RequestsPerMinute == 0 || more <= 0 || own < over {
		return nil
	}
	return &Exceeded{What: names[requests], Limit: limits.RequestsPerMinute, RetryAfter: l.retryAfter(now, t, requests, more)}
}

// Count counts a request without tokens, whatever the limits are.
func (l *Limiter) Count(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tenant(now, name).minute[requests].add(l.slot(now), 1)
	l.tell(name)
}
