// Package routingdriver drives pkg/routing, which chooses the workers of each request. It
// serializes the events of requests, workers, signals and operators, carries out the
// decisions, and reports to operators in logs and metrics.
//
// The router's packages import it. Its owner runs RunTimers; only package workers starts
// goroutines. Lock order: Dispatcher.loop, then the lock of the pool of workers.
package routingdriver
