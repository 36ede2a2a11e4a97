package speculation

import (
	"math/bits"
	"time"
)

// GuessTimes is what a guess takes that a model makes, by how many sequences a step has: those of
// several are made together. As in StepTimes it is that of one of the shorter steps. The zero value is
// ready.
type GuessTimes struct {
	by [10]guessesOf // by the binary logarithm of the sequences
}

// guessesOf is what a guess takes with so many sequences.
type guessesOf struct {
	ms    float64
	steps int // that it is of
}

func sizeOf(sequences int) int {
	var g GuessTimes
	return min(bits.Len(uint(max(sequences, 0))), len(g.by)-1)
}

// Observe takes a step of so many sequences in which so many guesses took so long.
func (g *GuessTimes) Observe(sequences, guesses int, took time.Duration) {
	if guesses < 1 || took < 0 {
		return
	}
	k, ms := &g.by[sizeOf(sequences)], took.Seconds()*1e3/float64(guesses)
	switch {
	case k.steps == 0 || k.steps < firstSteps && ms < k.ms:
		k.ms = ms
	case k.steps < firstSteps:
	case ms < k.ms:
		k.ms += max(ms-k.ms, -stepDown*k.ms)
	default:
		k.ms += min(ms-k.ms, stepUp*k.ms)
	}
	k.steps++
}

// Ms is what a guess would take, in milliseconds; 0 if nothing is known. Where there were no steps of
// about so many sequences, the nearest ones count.
func (g *GuessTimes) Ms(sequences int) float64 {
	at := sizeOf(sequences)
	for apart := range g.by {
		for _, i := range []int{at - apart, at + apart} {
			if i >= 0 && i < len(g.by) && g.by[i].steps > 0 {
				return g.by[i].ms
			}
		}
	}
	return 0
}
