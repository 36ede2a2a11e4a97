// Package sender is the sending side of the KV transfer as a state machine:
// events in, actions out, no goroutine, clock, lock or I/O. pkg/kvtransfer drives it;
// simulations and property tests may.
//
// A core is one session, all streams of which had a ReceiverHello. It owns the transfers in
// it, what of them is still to be sent, and the credit of each stream. The states of
// a transfer and what each event does in them stand in table.go.
package sender
