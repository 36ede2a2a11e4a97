// Package transfer measures the KV transfer on this machine: the real Sender and
// Receiver over real sockets, beside plain copies over the same kind of socket, into
// the same pages, in the same run.
//
// The command line imports it. A Bench owns its pages, which are outside Go's heap,
// its servers and its connections until Close; every goroutine that a measurement
// starts has ended when it returns.
package transfer
