package tokenizer

import "fmt"

// maxGrowth bounds how many times longer all Replaces of a file together may make a
// text, and maxPrepend what a Prepend puts before one, bytes. Known files need a
// factor of three, for ▁ in place of a space. Without bounds, six components make
// sixteen million letters of one.
const (
	maxGrowth  = 64
	maxPrepend = 256
)

// growth is how many times longer a text may have become; 0 is once.
type growth int

// replace counts a Replace of a text of so many bytes.
func (g *growth) replace(path string, from, content int) error {
	if content > maxGrowth*max(from, 1) {
		return fmt.Errorf("%s: replaces %d bytes by %d: growth of more than %d times is not supported", path, from, content, maxGrowth)
	}
	factor := growth((content + from - 1) / max(from, 1))
	*g = max(*g, 1) * max(factor, 1)
	if *g > maxGrowth {
		return fmt.Errorf("%s: this Replace and those before it may make a text %d times longer: more than %d is not supported", path, *g, maxGrowth)
	}
	return nil
}
