// Package sender is the sending side of the KV transfer as a state machine: events in,
// actions out, no goroutine, clock, lock or I/O. pkg/kvtransfer drives it; simulations and
// property tests may too.
//
// A core is one session whose streams all have a ReceiverHello. It owns the session's
// transfers, their unsent slices, and each stream's credit. table.go lists a transfer's
// states and what each event does in them.
package sender
