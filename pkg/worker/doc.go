// Package worker is what prefill and decode workers have in common: a Driver
// that runs a scheduler's decisions on an engine, the checks on a task that a
// router sends, and load reports.
//
// The services of workers import it.
// A Driver owns its scheduler and one goroutine, in which every engine step runs
// (Run); reports have one goroutine of their own (Report), and what is looked for and
// overwritten in the KV of sequences that failed has one while there is any, which Run
// waits for.
//
// Lock order: that of membership.Member, Driver.mu, Sequence.mu. Neither is held while the engine
// computes, while anything is sent, or while a caller's code runs, but for the
// functions of Config, which say that they must not block.
package worker
