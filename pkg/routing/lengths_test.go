package routing

import (
	"math/rand/v2"
	"testing"
)

// Prompts of 1 to 100 ms come to a queue that has room for those of up to room ms.
func TestLengths(t *testing.T) {
	for _, test := range []struct {
		name string
		room float64
	}{
		{"all fit", 100},
		{"the longest often do not", 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l lengths
			random := rand.New(rand.NewPCG(1, 2))
			var all, longest admissions
			for range 20_000 {
				ms := 1 + 99*random.Float64()
				// What is left of the time varies; a request that is let in takes of it.
				free := test.room + 100*random.Float64()
				admitted := l.takenMs(ms, 1000) <= free
				l.judged(ms, admitted)
				all.add(admitted)
				if ms > 75 {
					longest.add(admitted)
				}
			}
			if got := longest.share() / all.share(); got < 0.6 || got > 1.1 {
				t.Errorf("of the longest quarter %.2f are let in, of all %.2f", longest.share(), all.share())
			}
		})
	}
}
