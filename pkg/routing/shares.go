package routing

// shares are what tenants were served, in tokens, so that those that wait get equal shares:
// start-time fair queueing (Goyal, Vin and Cheng, 1996) with equal weights. The zero value is
// ready.
type shares struct {
	tenants map[string]*tenantShare
	// now is the least that a tenant that waits was served when it went last: who comes anew
	// begins there, and gets nothing for the time that it was away.
	now float64
}

type tenantShare struct {
	served  float64
	waiting int // requests
	running int // those that are not charged for their answers yet
}

// wait counts a request in that waits.
func (s *shares) wait(tenant string) {
	if s.tenants == nil {
		s.tenants = make(map[string]*tenantShare)
	}
	t := s.tenants[tenant]
	if t == nil {
		t = &tenantShare{}
		s.tenants[tenant] = t
	}
	if t.waiting++; t.waiting == 1 {
		t.served = max(t.served, s.now)
	}
}

// leave counts it out.
func (s *shares) leave(tenant string) {
	s.tenants[tenant].waiting--
	s.drop(tenant)
}

// served is what a tenant that waits was served.
func (s *shares) served(tenant string) float64 { return s.tenants[tenant].served }

// send charges a tenant that waits for a request that goes now.
func (s *shares) send(tenant string, tokens int) {
	t := s.tenants[tenant]
	s.now = max(s.now, t.served)
	t.served += float64(tokens)
	t.running++
}

// begin counts in a hedged attempt of a request that was sent.
func (s *shares) begin(tenant string) {
	if t := s.tenants[tenant]; t != nil {
		t.running++
		return
	}
	s.wait(tenant)
	s.tenants[tenant].running++
	s.leave(tenant)
}

// end charges it for the answer of a request that was sent.
func (s *shares) end(tenant string, tokens int) {
	t := s.tenants[tenant]
	t.served += float64(tokens)
	t.running--
	s.drop(tenant)
}

// drop forgets a tenant that has nothing: it takes no memory.
func (s *shares) drop(tenant string) {
	if t := s.tenants[tenant]; t.waiting == 0 && t.running == 0 {
		delete(s.tenants, tenant)
	}
}
