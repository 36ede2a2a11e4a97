// Package kvcache knows what KV pages hold, but not the pages: the layout that
// two engines have to share, the chained hashes that name a block's content, the
// pool that gives blocks to sequences and keeps finished ones as a prefix cache,
// and the index in which a router collects which worker holds which block.
//
// Anything under pkg, services, simulate and cmd may import it. Pool and Index are plain state:
// no goroutines, locks, clocks or I/O. Neither is safe for concurrent use; each
// has one owner, the worker's scheduler and the router's core.
//
// # Prefetching
//
// Where many lines of memory are about to be read that no cache has, one after the other, a little of each is
// read before, in loads that do not depend on each other: a processor waits for all of those at a time. Go has
// no instruction for it, so what is read is added to a field called prefetchSink, here and in other packages,
// which nobody reads: without a use the compiler would leave the loads out.
package kvcache
