// Package worker is what prefill and decode workers have in common: a Driver
// that runs a scheduler's decisions on an engine, the checks on a task that a
// router sends, load reports, and the Worker gRPC service.
//
// services/prefill and services/decode import it, and cmd/tandem for identities.
// A Driver owns its scheduler and one goroutine, in which every engine step runs
// (Run); reports have one goroutine of their own (Report).
//
// Lock order: Member.mu, Driver.mu, Sequence.mu. Neither is held while the engine
// computes, while anything is sent, or while a caller's code runs, but for the
// functions of Config, which say that they must not block.
package worker
