// Package workerdriver drives a worker.Worker with an engine: it computes the steps, hands
// what comes of a sequence to whoever serves it (Sequence), and has a worker join and leave
// (Member). The prefill and decode services use it.
//
// A Driver has one lock, under which it calls the worker. Driver.Run computes in its caller's
// goroutine, and owns one that finds masks beside a step and one that inspects and overwrites
// blocks. Member.Run has three beside it: they report the load, remove the record of a worker
// that has drained, and leave when the engine is lost. Each Run waits for its own.
package workerdriver
