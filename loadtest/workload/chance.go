package workload

import "math/rand/v2"

// Purposes of random numbers. Each has its own sequence, so that another draw for one
// does not change the others: two rates of a sweep draw the same lengths.
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

// seeded starts the sequence for a purpose and, within it, for a thing and part.
func seeded(pcg *rand.PCG, seed, purpose, thing, part uint64) {
	high := mix(seed + purpose*golden)
	pcg.Seed(high, mix(mix(high^thing)+part))
}

// random returns the source for a purpose.
func random(seed, purpose, thing, part uint64) *rand.Rand {
	pcg := new(rand.PCG)
	seeded(pcg, seed, purpose, thing, part)
	return rand.New(pcg)
}

// repeated is the seed of what differs between runs at one rate. The first run uses the
// seed itself.
func repeated(seed uint64, repeat int) uint64 {
	if repeat == 0 {
		return seed
	}
	return mix(seed ^ mix(uint64(repeat)))
}

const golden = 0x9E3779B97F4A7C15

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", OOPSLA '14), a bijection that turns similar numbers
// into dissimilar states.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
