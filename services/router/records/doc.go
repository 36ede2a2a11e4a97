// Package records remembers how the last requests were routed. Operators may read all of it,
// and a caller its own requests, by the secret that only that caller has.
//
// The router's packages import it. It starts no goroutines.
package records
