// Package latencybudget compares the latencies of requests with the declared budget: in
// metrics, in a report for operators, and for each request.
//
// The router's packages import it. It starts no goroutines.
package latencybudget
