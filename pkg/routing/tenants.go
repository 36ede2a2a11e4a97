package routing

// tenantCounts is how many requests each tenant has, waiting and running.
type tenantCounts map[string]int

// full reports whether a tenant has as many requests as it may.
func (c tenantCounts) full(tenant string, limit int) bool { return c[tenant] >= limit }

// enter counts a request in.
func (c tenantCounts) enter(tenant string) { c[tenant]++ }

// leave counts a request out. A tenant without requests takes no memory.
func (c tenantCounts) leave(tenant string) {
	if c[tenant]--; c[tenant] <= 0 {
		delete(c, tenant)
	}
}
