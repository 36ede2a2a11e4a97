// Package control serves the calls of operators: workers and drains, the policy, the latency
// budget, and how requests were routed. It checks no callers: the server that it is added to
// must, or must be out of reach of clients.
//
// The router imports it. A call that drains a worker starts a goroutine and waits for it.
package control
