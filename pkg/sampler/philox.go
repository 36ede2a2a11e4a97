package sampler

import "math/bits"

// Philox is the counter-based generator Philox4x32-10 of Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC '11). Equal
// arguments give equal results; any counter can be asked for at once.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		multiplier0, multiplier1 = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1             = 0x9E3779B9, 0xBB67AE85
		rounds                   = 10
	)
	for range rounds {
		high0, low0 := bits.Mul32(multiplier0, counter[0])
		high1, low1 := bits.Mul32(multiplier1, counter[2])
		counter = [4]uint32{high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0}
		key[0] += weyl0
		key[1] += weyl1
	}
	return counter
}

// Uniform is the random number of a draw: uniform in [0, 1), a multiple of
// 2^-53, made from the first two words of Philox with the offset as counter and
// the seed as key.
func Uniform(seed, offset uint64) float64 {
	words := Philox([4]uint32{uint32(offset), uint32(offset >> 32), 0, 0}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	mantissa := (uint64(words[0])<<32 | uint64(words[1])) >> 11
	return float64(mantissa) * (1.0 / (1 << 53))
}
