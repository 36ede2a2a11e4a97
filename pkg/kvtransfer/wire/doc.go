// Package wire puts the messages of the KV transfer on gRPC and takes them from
// it. Chunks are written and read by hand, as the protobuf that
// proto/tandem/kvtransfer/v1 says; every other message goes by way of protobuf's own
// code.
//
// A sender's pages are read once: in one pass over them their bytes are summed and
// put behind the header, into a pooled buffer that stays within the processor's
// caches until gRPC has written it. So pages are free when Marshal returns: nothing
// that gRPC does with a broken connection later can read them. A receiver's payload
// is copied once, from the buffers that the connection filled into the pages, and
// summed on the way.
//
// Those who move KV import it, and nobody else. It starts no goroutines. Its buffers are
// pooled: who is handed one gives it back, as the functions say.
package wire
