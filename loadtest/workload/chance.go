package workload

import "math/rand/v2"

// What chance is used for. Each purpose has numbers of its own, so that one more
// draw for one of them leaves the others as they were: two rates of a sweep draw
// the same lengths.
const (
	forArrivals = iota + 1
	forLengths
	forClasses
	forPrompts
	forPrefixes
	forBlocks
	forTurns
	forSampling
	forAnswers
)

// seeded begins the numbers for a purpose and, within it, for a thing.
func seeded(pcg *rand.PCG, seed, purpose, thing, part uint64) {
	high := mix(seed + purpose*golden)
	pcg.Seed(high, mix(mix(high^thing)+part))
}

// random is a source of numbers for a purpose.
func random(seed, purpose, thing, part uint64) *rand.Rand {
	pcg := new(rand.PCG)
	seeded(pcg, seed, purpose, thing, part)
	return rand.New(pcg)
}

// repeated is the seed of what differs between runs at one rate; of the first one it
// is the seed itself.
func repeated(seed uint64, repeat int) uint64 {
	if repeat == 0 {
		return seed
	}
	return mix(seed ^ mix(uint64(repeat)))
}

const golden = 0x9E3779B97F4A7C15

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", OOPSLA '14): a bijection that makes unlike
// states of like numbers.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
