// Package wire puts the messages of the KV transfer on gRPC and takes them from
// it. Chunks are written and read by hand, as the protobuf that
// proto/tandem/kvtransfer/v1 says, so that their payload is read from the sender's
// pages and copied once, from the connection's buffers into the receiver's; every
// other message goes by way of protobuf's own code.
//
// Only services/kvtransfer may import it. It starts no goroutines. Its buffers are
// pooled: who is handed one gives it back, as the functions say.
package wire
