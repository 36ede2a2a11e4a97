// Package store is the shared KV block store: a bounded pool of blocks in the
// memory of a process without an engine. Prefill workers put blocks there that
// they are about to evict, and fetch those that they lack. Losing one costs hits
// and nothing else. docs/kv-store.md explains it.
//
// cmd/tandem builds the Service; services/prefill uses the [Client]. Blocks move
// by services/kvtransfer: an Offer is answered with a ticket of the store's
// Receiver, a Fetch is sent by the store's Sender.
//
// What is held, arriving, being read and evicted is decided in internal/stock,
// which has no goroutines, clocks or locks. This package puts it on gRPC. A store
// holds blocks of one layout at a time, with memory, Receiver and Sender of their
// own, a shelf; when it takes another layout the shelf is cleared away first.
//
// Goroutines: of a Service, those of its shelf's Receiver and Sender, one that
// runs the Receiver, one that reports and one that waits for a drain; all end with
// Run. A Client starts none.
//
// Locks: Service.mu guards the shelf's stock and everything beside it; under it
// only Signals are called, which do not block. Leaving.mu guards the record and is
// never held together with it. connections.mu guards a Client's table.
package store
