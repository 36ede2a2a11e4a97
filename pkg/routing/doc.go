// Package routing is the router's policy and queue: which workers there are, how
// busy each is, what waits, and which worker a request goes to. It is a state
// machine, Handle(now, event) → actions, so that live traffic, tests and
// simulation run the same policy.
//
// Choosing workers reads in filter.go (which may take the request), score.go (what it
// would cost on each) and pick.go (which one it is); decide.go puts them together.
//
// Three rules shape it. The router counts its own in-flight work, and load
// reports only correct that count, because reports are old when they arrive. A
// broken connection removes a worker from choice at once, while a worker that
// only etcd lost is kept for a while. The choice is random among the near-best,
// so that several routers do not all send to the same best worker.
//
// Whoever drives it imports it: the router, tests, a simulator. It owns the view of the
// workers, the queue and the in-flight accounting. It starts no goroutine, reads no
// clock, takes no lock and does no I/O: its driver serializes calls.
package routing
