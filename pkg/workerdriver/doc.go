// Package workerdriver drives a worker.Worker with an engine: it computes the steps, hands
// what comes of a sequence to whoever serves it (Sequence), and has a worker join and leave
// (Member). The prefill and decode services use it.
//
// A Driver has one lock, under which it calls the worker. Run owns the goroutine that
// computes and those that inspect and overwrite blocks, and waits for them.
package workerdriver
