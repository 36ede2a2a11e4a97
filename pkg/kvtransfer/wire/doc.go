// Package wire encodes the messages of the KV transfer for gRPC. Chunks are read and
// written by hand, as the protobuf of proto/tandem/kvtransfer/v1; all other messages use
// the protobuf library.
//
// A sender reads its pages once: one pass computes the checksum and copies the bytes behind
// the header, into a pooled buffer that stays in the processor's caches until gRPC has
// written it. The pages are free when Marshal returns, so nothing that gRPC does with a
// broken connection can read them later. A receiver copies a payload once, from the
// connection's buffers into the pages, and computes the checksum on the way.
//
// A sender that maps the receiver's pages writes slices there instead, in the same pass, and
// the message only names them. The receiver verifies them where they are.
//
// Pages of a device are copied by the device. If they have staging buffers
// (engine.Staging), it copies straight into the memory that gRPC sends, and a receiver's
// device copies from the memory into which the checksum's pass wrote.
//
// Only senders and receivers of KV import it. It starts no goroutines. Its buffers are
// pooled; functions say who must return one.
package wire
