// Package transport provides the KV transfer's connections to gRPC servers and clients.
//
// A receiver's connection reads a frame's payload and the next frame's header in one system
// call, straight into gRPC's buffer. A sender's connection within the machine keeps little
// in flight, so that the socket's data stays in the processor's caches.
//
// Only pkg/kvtransfer imports it. It starts no goroutines.
package transport
