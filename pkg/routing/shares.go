package routing

import (
	"maps"
	"math"
)

// shares are what tenants were served of one level, in tokens, so that those that wait get equal
// shares: start-time fair queueing (Goyal, Vin and Cheng, 1996) with equal weights. Each level has its
// own: what a tenant is served of another one says nothing about whose turn it is here.
type shares struct {
	tenants map[string]*tenantShare // those with requests
	// owing are tenants without requests that were served more than virtualTime while others waited, and
	// how much: their next requests begin there, unless nobody waits in between. At most owingMost.
	owing map[string]float64
	// leastOwing is no more than the least of owing.
	leastOwing float64
	// virtualTime is the least that a tenant that waits was served when it went last: who comes anew
	// begins there, and gets nothing for the time that it was away.
	virtualTime float64
	waiting     int // requests
	running     int // those that are not charged for their answers yet
	lengths     lengths
}

const owingMost = 1024

type tenantShare struct {
	served  float64
	waiting int // requests
	running int // those that are not charged for their answers yet
}

// wait counts a request in that waits.
func (s *shares) wait(tenant string) *tenantShare {
	t := s.tenants[tenant]
	if t == nil {
		t = &tenantShare{served: s.owing[tenant]}
		s.tenants[tenant] = t
		delete(s.owing, tenant)
	}
	s.waiting++
	if t.waiting++; t.waiting == 1 {
		t.served = max(t.served, s.virtualTime)
	}
	return t
}

// leave counts it out.
func (s *shares) leave(tenant string) {
	if s.waiting--; s.waiting == 0 {
		clear(s.owing)
	}
	s.tenants[tenant].waiting--
	s.drop(tenant)
}

// hasFew reports whether a tenant has less than half as many requests as others have on average.
func (s *shares) hasFew(tenant string) bool {
	t := s.tenants[tenant]
	return 2*(t.waiting+t.running)*len(s.tenants) < s.waiting+s.running
}

// send charges a tenant that waits for a request that goes now.
func (s *shares) send(tenant string, tokens int) {
	t := s.tenants[tenant]
	s.virtualTime = max(s.virtualTime, t.served)
	t.served += float64(tokens)
	t.running++
	s.running++
}

// begin counts in a hedged attempt of a request that was sent.
func (s *shares) begin(tenant string) {
	s.running++
	if t := s.tenants[tenant]; t != nil {
		t.running++
		return
	}
	s.wait(tenant).running++
	s.leave(tenant)
}

// end charges it for the answer of a request that was sent.
func (s *shares) end(tenant string, tokens int) {
	t := s.tenants[tenant]
	t.served += float64(tokens)
	t.running--
	s.running--
	s.drop(tenant)
}

// drop forgets a tenant that has no requests, but for what it owes those that wait.
func (s *shares) drop(tenant string) {
	t := s.tenants[tenant]
	if t.waiting > 0 || t.running > 0 {
		return
	}
	delete(s.tenants, tenant)
	if s.waiting == 0 || t.served <= s.virtualTime {
		return
	}
	if len(s.owing) >= owingMost && s.leastOwing <= s.virtualTime {
		s.leastOwing = math.Inf(1)
		maps.DeleteFunc(s.owing, func(_ string, served float64) bool {
			if served > s.virtualTime {
				s.leastOwing = min(s.leastOwing, served)
			}
			return served <= s.virtualTime
		})
	}
	if len(s.owing) < owingMost {
		s.owing[tenant] = t.served
		s.leastOwing = min(s.leastOwing, t.served)
	}
}
