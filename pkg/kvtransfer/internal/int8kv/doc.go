// Package int8kv encodes KV in 8 bits per element: half the bytes of bf16, but lossy.
//
// A slice is its heads' keys, then its heads' values. Its encoding is one float32 scale
// for each of them, keys first, then one signed byte for each element in the slice's
// order; all little-endian. For each head of keys or values:
//
//	largest = largest magnitude of its finite elements
//	scale   = largest / 127
//	code    = element · (127 / largest), rounded to the nearest integer, half to even
//	element = code · scale, rounded to the nearest bf16, half to even
//
// Each operation is IEEE single precision, rounded to nearest even. NaN has the code 0, an
// infinity 127 or -127. If largest is below 2^-100, scale and codes are 0, so that it does
// not matter whether denormals are flushed. A scale must be 0 or between 2^-126 and the
// largest finite bf16 / 127; any other is an error. -128 is never written, and read as
// -127. Encoding decoded elements again gives the same bytes.
//
// Only pkg/kvtransfer may import it. It starts no goroutines and has no state.
package int8kv
