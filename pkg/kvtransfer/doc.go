// Package kvtransfer moves the KV cache of a sequence from the worker that computed it
// to the worker that continues it. The protocol is proto/tandem/kvtransfer/v1;
// docs/kv-transfer.md explains it.
//
// Decode workers mount the [Receiver] in their gRPC server, prefill workers use the
// [Sender], and the block store (services/kvtransfer) uses both. cmd/tandem may import
// the package too. Clients of a block store use storeclient.
//
// The packages receiver and sender hold both sides as state machines without goroutines,
// clocks, locks or I/O; wire encodes their messages. This package connects them to gRPC
// streams, which it owns. It guarantees:
//
//   - No late write: a block is not written after Drained or Committed of its
//     reservation.
//   - Exactly one end: Committed, or Failed and then Drained, or Drained alone if the
//     owner cancelled.
//   - Nothing stranded: a reservation ends within one lease if its sender is gone or
//     silent or never came, and within two if the sender is alive but does not
//     acknowledge the end.
//
// A lost peer is detected in three ways. A process that dies breaks its connections at
// once. A host that vanishes is detected by gRPC keep-alives, which pkg/rpc enables on
// both sides: they close a connection on which nothing is received, even with unacknowledged
// bytes in flight, so no TCP user timeout is needed. A peer that keeps its connection but
// does nothing is cut off by the receiver's lease or the sender's AnswerTimeout, within
// one lease.
//
// Goroutines: a Receiver owns two for each stream, one to read and copy, one to write, and one
// for each process that asks for its pages or has them mapped.
// Run, on its caller's goroutine, enforces leases and waits for them. A Sender owns one
// for each session, to dial and keep time, and two for each stream, one to read, one to
// copy and write. Close waits for them.
//
// If the pages of both sides are in one memory (engine.Lending), a Sender sends the id of
// a loan instead of slices, and the Receiver copies them itself, on its reading goroutines.
// The goroutine that ends a transfer recalls its loans. The session's own goroutine waits at
// its end for copies in progress.
//
// On one host, a Sender can map the pages of a Receiver and write slices there itself
// (ServePages, SenderConfig.MapPages). Blocks of a session that ended are then free once the
// sender has unmapped the pages or its process has ended.
//
// Locks: Receiver.loop guards the receiver's core and the state beside it, connection.loop
// the same at the sender. Sender.mu guards the table of connections and is taken before
// connection.loop, never after. No lock is held across a callback, a page copy or a gRPC
// call. The end of a loan takes connection.loop, so Recall is not called under it; Lend is.
package kvtransfer
