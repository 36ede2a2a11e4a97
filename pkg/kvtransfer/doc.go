// Package kvtransfer moves the KV cache of a sequence from the worker that
// computed it to the worker that goes on with it. Its protocol is
// proto/tandem/kvtransfer/v1; docs/kv-transfer.md explains it.
//
// services/decode mounts the [Receiver] in its gRPC server, services/prefill uses
// the [Sender], and the block store (services/kvtransfer) both; cmd/tandem may import
// it. What a store's callers need is in storeclient.
//
// Both sides are state machines without goroutines, clocks, locks or I/O, in the
// packages receiver and sender; wire has their messages. This package puts them on
// gRPC streams and owns those streams. What it promises:
//
//   - No late write: a block of a reservation is not written after its Drained,
//     nor after its Committed.
//   - Exactly one end: Committed, or Failed and then Drained, or, for a
//     reservation that its owner cancelled, Drained alone.
//   - Nothing stranded: a reservation whose sender is gone or silent, or that was
//     never opened, ends within a lease; one whose sender speaks and does not
//     acknowledge its end, within two.
//
// Who vanishes is noticed in three ways. A process that dies breaks its connections,
// which frees at once. A host that vanishes says nothing: gRPC's keep-alives, which
// pkg/rpc asks for on both sides, give a connection up that brings nothing, bytes on
// their way unanswered or not; they look at what is read, so they need no TCP user
// timeout beside them. And a peer that keeps its connection and does nothing is cut by
// the receiver's lease, or by the sender's AnswerTimeout: a lease at most.
//
// Goroutines: two for each stream of a Receiver (one reads and copies, one
// writes), owned by the Receiver; Run, on its caller's goroutine, keeps the
// leases and waits for the others. One for each session of a Sender, which dials and
// keeps time, and two for each of its streams (one reads, one copies and writes),
// owned by the Sender; Close waits for them.
//
// Where the pages of both sides are in one memory (engine.Lending), a Sender sends the
// number of a loan instead of slices, and the Receiver copies them there. A connection's
// loans are taken by goroutines of the Receiver, and recalled by the one that keeps its
// time, which at its end waits for those that are being taken.
//
// Locks: Receiver.mu guards the core and everything beside it, and so does
// connection.mu at the sender. Sender.mu guards the table of connections and is
// taken before connection.mu, never after. No lock is held across a callback,
// a page copy or a call of gRPC; the end of a loan takes connection.mu, so Recall is not
// called under it, but Lend is.
package kvtransfer
