// Package kvtransfer is the shared KV block store: a bounded pool of blocks in the
// memory of a process without an engine. Prefill workers put blocks there that
// they are about to evict, and fetch those that they lack. Losing one costs hits
// and nothing else. docs/kv-store.md explains it.
//
// cmd/tandem builds the Service; workers call it through pkg/kvtransfer/storeclient.
// Blocks move by pkg/kvtransfer: an Offer is answered with a ticket of the store's
// Receiver, a Fetch is sent by the store's Sender.
//
// What is held, arriving, being read and evicted is decided in pkg/blockstore,
// which has no goroutines, clocks or locks. This package puts it on gRPC. A store
// holds blocks of one layout at a time, in a cache with memory, Receiver and Sender of
// its own; when it takes another layout the cache is cleared away first.
//
// Goroutines: of a Service, those of its cache's Receiver and Sender, one that
// runs the Receiver, one that reports, and two that wait for a drain, to end sessions
// and to leave the membership; all end with Run.
//
// Locks: Service.mu guards the cache's store and everything beside it; under it
// only Signals are called, which do not block. The Member's lock is taken before it.
package kvtransfer
