// Package tenants limits how many requests each tenant has, waiting and running.
//
// pkg/routing imports it. It starts no goroutines and takes no locks.
package tenants

// Counts is how many requests each tenant has. One goroutine at a time.
type Counts map[string]int

// Full reports whether a tenant has as many requests as it may.
func (c Counts) Full(tenant string, limit int) bool { return c[tenant] >= limit }

// Enter counts a request in.
func (c Counts) Enter(tenant string) { c[tenant]++ }

// Leave counts a request out. A tenant without requests takes no memory.
func (c Counts) Leave(tenant string) {
	if c[tenant]--; c[tenant] <= 0 {
		delete(c, tenant)
	}
}
