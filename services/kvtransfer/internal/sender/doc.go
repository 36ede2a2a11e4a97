// Package sender is the sending side of the KV transfer as a state machine:
// events in, actions out, no goroutine, clock, lock or I/O. Only
// services/kvtransfer and tandem's simulator may import it.
//
// A core is one greeted stream. It owns the transfers on it, what of them is
// still to be sent, and the credit. The states of a transfer and what each event
// does in them stand in table.go.
package sender
