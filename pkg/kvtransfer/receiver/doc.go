// Package receiver is the receiving side of the KV transfer as a state machine:
// events in, actions out, no goroutine, clock, lock or I/O. pkg/kvtransfer drives it;
// simulations and property tests may.
//
// It owns the table of reservations, the sessions of streams, and what every stream
// may still send. The states of a transfer and what each event does in them stand in
// table.go.
package receiver
