// Package spelling refuses names that are none, and guesses which was meant. Anything may import it. It starts no goroutines.
package spelling

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// leastPrefix is how many bytes a name has at least to be taken for the beginning of another.
const leastPrefix = 3

// Check refuses a name that is none of names, and says which may have been meant. what is a word
// for them, such as "policy".
func Check(what, name string, names []string) error {
	if slices.Contains(names, name) {
		return nil
	}
	if nearest, near := Nearest(name, slices.Values(names)); near {
		return fmt.Errorf("there is no %s %q, did you mean %q?", what, name, nearest)
	}
	return fmt.Errorf("there is no %s %q: choose one of %s", what, name, strings.Join(names, ", "))
}

// Nearest is the name among names that takes the fewest changes to make of name, the
// first by the alphabet if there are several, and whether it is so near that it may be
// what was meant. Names that begin with name are nearer than all others. It is empty if
// there are no names.
func Nearest(name string, names iter.Seq[string]) (nearest string, near bool) {
	least, begins := -1, false
	for candidate := range names {
		longer := len(name) >= leastPrefix && strings.HasPrefix(candidate, name)
		d := distance(name, candidate)
		if least < 0 || longer && !begins || longer == begins && (d < least || d == least && candidate < nearest) {
			nearest, least, begins = candidate, d, longer
		}
	}
	return nearest, begins || least >= 0 && least <= min(4, (len(name)+2)/3)
}

// distance is how many bytes have to be put in, taken out or changed to make b of
// a (Levenshtein 1966).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
