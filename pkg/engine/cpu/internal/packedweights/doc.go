// Package packedweights keeps packed weights in files of a folder, so that a model is packed
// once and not at every start: whole, checked byte for byte, and named by what they
// are.
//
// Only engine/cpu imports it; of ours it imports parallel. It owns no memory: weights are
// read straight into their caller's and written from there. Read and Write start
// goroutines and wait for them before they return. Any number of processes may use
// one folder at a time: files appear whole, by a rename, and are never changed.
//
// A file is, with all numbers little-endian,
//
//	8 bytes    TDMPACKD
//	uint32     version of this layout, 1
//	uint32     bytes of the identity
//	uint64     bytes of the weights
//	identity   what they are, as text
//	uint32...  CRC-32C of each MiB of the weights, the last one may be shorter
//	zeros      to four bytes before a multiple of 4096 bytes
//	uint32     CRC-32C of all of the above
//	weights    the parts one after the other, as they are in memory
//
// Nothing in a file says where anything is: places follow from two lengths, which
// have to agree with the file's size. The checksums find damage, not malice: whoever
// may write to the folder decides what the model says.
package packedweights
