// Package transport has the connections that KV moves over, as gRPC's servers and
// clients use them.
//
// A receiver's connections read a frame's payload and the head of the next frame
// with one system call, straight into the buffer that gRPC has for it: it needs no
// buffer between. A sender's connections to the same machine keep little on the way:
// what lies in the socket then lies in the processor's caches, too.
//
// It starts no goroutines.
package transport
