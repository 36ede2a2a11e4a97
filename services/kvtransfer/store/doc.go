// Package store is the shared KV block store: a bounded pool of blocks in the
// memory of a process without an engine. Prefill workers put blocks there that
// they are about to evict, and fetch those that they lack. Losing one costs hits
// and nothing else.
//
// cmd/tandem builds the store; services/prefill uses the [Client]. Blocks move by
// services/kvtransfer: an Offer is answered with a ticket of the store's Receiver,
// a Fetch is sent by the store's Sender. A Client starts no goroutine.
package store
