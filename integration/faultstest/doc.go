// Package faultstest stands between the sender and the receiver of KV and does what
// networks and dying peers do: it cuts connections, falls silent, spoils single
// bits, and stops the traffic in front of a chosen message, so that a test can do
// something in exactly that phase of a transfer.
//
// Only tests may import it. A Proxy starts a goroutine for its listener and two for
// each connection; Close ends them and waits. Proxy.mu guards everything; it is not
// held while bytes are read or written.
package faultstest
