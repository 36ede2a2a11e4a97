// Package worker is the life of sequences on a worker, from the task that a router sends to
// the last token: reservation, prompt, hand-over of the KV, decode, cancel, preemption, drain.
//
// Worker is a state machine around the scheduler: Handle takes an event and answers with
// actions. It has no goroutine, clock or lock, and does no I/O; package workerdriver drives it
// with an engine and streams, and whoever has other events can drive it too.
package worker
