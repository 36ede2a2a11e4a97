// Package sampler draws tokens from logits. A draw is a function of the logits,
// the parameters and the number of tokens drawn before: randomness is a counter
// (seed, offset), not a stream, so that a request can move to another worker
// half-way and go on with the same tokens.
//
// The arithmetic is defined here down to the last bit and depends on neither the
// machine nor the compiler: an exponential of our own, sums in one order, no
// fused operations. Every engine that samples on the host uses this package; one
// that samples on its device follows the same definition.
//
// Anything under pkg and services may import it. It starts no goroutines.
package sampler
