// Package kvcache knows what KV pages hold, but not the pages: the layout that
// two engines have to share, the chained hashes that name a block's content, the
// pool that gives blocks to sequences and keeps finished ones as a prefix cache,
// and the index in which a router collects which worker holds which block.
//
// Anything under pkg, services, simulate and cmd may import it. Pool and Index are plain state:
// no goroutines, locks, clocks or I/O. Neither is safe for concurrent use; each
// has one owner, the worker's scheduler and the router's core.
package kvcache
