// Package inventory decides what a shared block store does with its blocks: which are
// held, which arrive, which are being read, and which are evicted. It is plain
// state without goroutines, locks, clocks or I/O, over a kvcache.Pool, and is not
// safe for concurrent use.
//
// Only services/kvtransfer imports it.
package inventory
