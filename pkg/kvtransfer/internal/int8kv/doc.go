// Package int8kv is the encoding of KV in eight bits an element: half the bytes of
// bf16 on the way, and KV that is near what was computed and not the same.
//
// A slice is its heads' keys, then its heads' values. Encoded it is one float32
// scale for each of them, keys first, then one signed byte for each element, in
// the slice's own order; all little-endian. For each head of keys or of values:
//
//	largest = the largest magnitude of its elements, of those that are finite
//	scale   = largest / 127
//	code    = element · (127 / largest), to the nearest integer, half to even
//	element = code · scale, to the nearest bf16, half to even
//
// Each operation is one of IEEE single precision, rounded to nearest even. NaN has
// the code 0, an infinity 127 or -127. Where largest is under 2^-100, scale and
// codes are 0, so that it does not matter whether denormals are kept. A scale that
// is neither 0 nor from 2^-126 to the largest finite bf16 / 127 is an error; -128
// is never written, and read as -127. What is encoded, decoded and encoded again
// gives the same bytes.
//
// Only pkg/kvtransfer may import it. It starts no goroutines and keeps no
// state.
package int8kv
