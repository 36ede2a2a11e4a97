// Package fleet is the router's policy and queue: which workers there are, how
// busy each is, what waits, and which worker a request goes to. It is a state
// machine, Handle(now, event) → actions, so that live traffic, tests and
// simulation run the same policy.
//
// Only the router imports it. It owns the view of the workers, the queue and
// the in-flight accounting; it starts no goroutine, reads no clock, takes no
// lock and does no I/O: its driver serializes calls.
//
// Three rules shape it. The router counts its own in-flight work and load
// reports only correct that count, because reports are old when they arrive. A
// broken connection removes a worker from choice at once, while a worker that
// only etcd lost is kept for a while. The choice is random among the near-best,
// so that several routers do not all send to the same best worker.
//
// That KV has no way from a prefill worker to a decode worker speaks against neither:
// it is the pair that is left alone for a while. In mode auto one worker then does all.
//
// Block stores are members too: their blocks are in the index, and a prefill worker
// is told of those that it lacks. That is a hint; nothing waits for a store.
package fleet
