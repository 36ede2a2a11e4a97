// Package receiver is the receiving side of the KV transfer as a state machine: events in,
// actions out, no goroutine, clock, lock or I/O. pkg/kvtransfer drives it; simulations and
// property tests may too.
//
// It owns the reservations, the sessions and their streams, and each stream's credit.
// table.go lists a transfer's states and what each event does in them.
package receiver
