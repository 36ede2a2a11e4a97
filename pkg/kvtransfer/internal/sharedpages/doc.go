// Package sharedpages passes the memory of a receiver's pages to senders of its host, over a
// Unix socket of its own, and keeps who has it mapped. docs/kv-transfer.md specifies the
// messages.
//
// At the receiver a [Peer] is one process that asks. At the sender a [Mapping] is the pages.
// Only pkg/kvtransfer imports it. It starts no goroutines. It works on Linux alone.
package sharedpages
