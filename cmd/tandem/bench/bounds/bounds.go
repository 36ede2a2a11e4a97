// Package bounds checks the numbers that the flags of benchmarks give. The packages of
// cmd/tandem/bench import it. It starts no goroutines.
package bounds

import (
	"cmp"
	"fmt"
	"strings"
)

// Within is an error if the value of a flag, such as "--rounds", is less than least, more than
// most, or not a number. What note says follows the bounds.
func Within[T cmp.Ordered](flag string, value, least, most T, note ...string) error {
	if value >= least && value <= most {
		return nil
	}
	return fmt.Errorf("%s: %v is outside %v to %v%s", flag, value, least, most, strings.Join(note, ""))
}
