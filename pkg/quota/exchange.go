package quota

import (
	"context"
	"log/slog"
	"maps"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// reportLeast is the shortest time between two reports.
	reportLeast = 20 * time.Millisecond
	// reportEvery is the longest.
	reportEvery = time.Second
	// maxTenants bounds the tenants of a report, which then has less than the 1 MiB that NATS takes. One
	// with so many is followed by one with the rest.
	maxTenants = 4096
	// maxHeard bounds the tenants that are remembered of another router.
	maxHeard = 16 * maxTenants
)

// tell has a report sent. mu is held.
func (l *Limiter) tell(name string) {
	if l.alone(time.Now()) {
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

// Heard takes in the report of another router. One of a router that the mesh has not had lately, or
// that is older than another, counts for nothing, nor does what comes before the first whole one.
func (l *Limiter) Heard(report *controlv1.TenantReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, more := time.Now(), len(report.GetTenants()) >= maxTenants
	p := l.from(now, report.GetOrigin())
	if p == nil || p.sequence >= report.GetOrigin().GetSequence() || p.uses == nil && !report.GetWhole() {
		return
	}
	p.sequence = report.GetOrigin().GetSequence()
	if !more {
		p.heard = now
	}
	if report.GetWhole() {
		p.whole, p.round = now, p.round+1
		if p.uses == nil {
			p.uses = make(map[string]use)
		}
		// What the report has no place for counts as it did until it is told, at the latest in this round.
		maps.DeleteFunc(p.uses, func(_ string, u use) bool { return !more || u.round+1 < p.round })
	}
	for _, u := range report.GetTenants() {
		if _, known := p.uses[u.GetTenant()]; !known && len(p.uses) >= maxHeard {
			l.sayFull.Do(func() {
				l.logger.Warn("limits of tenants do not hold over several routers: too many tenants use another router at a time; logged once",
					slog.String("peer", p.id), slog.Int("most", maxHeard))
			})
			continue
		}
		p.uses[u.GetTenant()] = use{
			here:     amounts{bounded(u.GetRequests()), bounded(u.GetTokens()), bounded(u.GetRunning())},
			departed: amounts{bounded(u.GetLeftRequests()), bounded(u.GetLeftTokens())},
			round:    p.round,
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
	l.depart(now)
	if whole = whole || l.introduced; whole {
		l.introduced = false
		for name := range l.tenants {
			t := l.tenant(now, name)
			if t.running == 0 && t.minute[requests].sum == 0 && t.minute[tokens].sum == 0 {
				delete(l.tenants, name)
				continue
			}
			l.changed[name] = true
		}
	}
	if l.alone(now) {
		clear(l.changed)
		return nil
	}
	if whole {
		l.whole = now
		l.tellOfDeparted()
	}
	report := &controlv1.TenantReport{Whole: whole}
	for name := range l.changed {
		if len(report.Tenants) == maxTenants {
			break // the next one has the rest
		}
		delete(l.changed, name)
		t := l.tenant(now, name)
		uses, departed := t.uses(), l.usedByDeparted(now, name, true)
		t.told, t.lastTold = append(t.told, told{now, uses}), now
		report.Tenants = append(report.Tenants, &controlv1.TenantUse{
			Tenant: name, Requests: uint64(uses[requests]), Tokens: uint64(uses[tokens]), Running: uint64(uses[running]),
			LeftRequests: uint64(departed[requests]), LeftTokens: uint64(departed[tokens]),
		})
	}
	if len(report.Tenants) == maxTenants {
		l.wake()
	}
	return report
}

// tellOfDeparted has the next report tell of the tenants of routers that have left. mu is held.
func (l *Limiter) tellOfDeparted() {
	for _, p := range l.departed {
		for name := range p.uses {
			l.changed[name] = true
		}
	}
}
