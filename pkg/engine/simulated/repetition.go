package simulated

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/pkg/model"
)

// LeastAcceptance is the least Config.Acceptance above 0.
const LeastAcceptance = 0.01

func checkAcceptance(a float64) error {
	if !(a == 0 || a >= LeastAcceptance && a <= 1) { // NaN too
		return fmt.Errorf("%v is neither 0 nor between %v and 1", a, LeastAcceptance)
	}
	return nil
}

// fewestRepeated is the fewest tokens of texts that repeat themselves.
const fewestRepeated = 8

// repeatedTokens is how many tokens texts have. What is guessed is right by chance in one of
// as many cases, at least.
func repeatedTokens(acceptance float64) int {
	return max(fewestRepeated, int(math.Ceil(1/acceptance)))
}

// acceptances is how many guesses of speculation.Lookup are right in texts of fewestRepeated tokens that follow the
// ring with a probability of 1/8, 2/8 and so on: measured, since places of a token vote for what follows it.
// TestAcceptance holds it against the lookup.
var acceptances = [fewestRepeated]float64{0.125, 0.151, 0.239, 0.366, 0.515, 0.683, 0.863, 1}

// followFor is the probability for an acceptance. Below the least of acceptances all tokens are as likely.
func followFor(acceptance float64) float64 {
	for i, above := range acceptances[1:] {
		if below := acceptances[i]; acceptance <= above {
			return (float64(i+1) + max(acceptance-below, 0)/(above-below)) / fewestRepeated
		}
	}
	return 1
}

// repetition draws texts in which guesses by n-grams find something: they have few tokens, in a
// ring, and after one comes mostly the next one. Each token depends on the one before it and on
// chance alone.
type repetition struct {
	ring   []int32
	places map[int32]int // in ring
	follow float64       // the probability
}

func newRepetition(spec model.Spec, acceptance float64) *repetition {
	n := repeatedTokens(acceptance)
	r := &repetition{places: make(map[int32]int)}
	stride := max(spec.VocabSize/n, 1)
	for first := 0; first < stride && len(r.ring) < n; first++ { // again, where tokens are left out
		for token := int32(first); int(token) < spec.VocabSize && len(r.ring) < n; token += int32(stride) {
			if token != spec.BOS && !slices.Contains(spec.EOS, token) {
				r.places[token] = len(r.ring)
				r.ring = append(r.ring, token)
			}
		}
	}
	r.follow = 1 / float64(n)
	if n == fewestRepeated {
		r.follow = followFor(acceptance)
	}
	return r
}

// draw is the token after another, by a random number.
func (r *repetition) draw(last int32, random uint64) int32 {
	n := uint64(len(r.ring))
	place, is := r.places[last]
	switch chance := float64(mix(random)>>11) / (1 << 53); {
	case !is: // of a prompt
		return r.ring[random%n]
	case chance < r.follow:
		return r.ring[(uint64(place)+1)%n]
	}
	return r.ring[(uint64(place)+2+random%(n-1))%n]
}
