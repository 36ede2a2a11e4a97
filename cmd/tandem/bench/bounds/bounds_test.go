package bounds_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
)

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		got  error
		want string // empty: no error
	}{
		{bounds.Within("--rounds", 1, 1, 1000), ""},
		{bounds.Within("--rounds", 1000, 1, 1000), ""},
		{bounds.Within("--rounds", 0, 1, 1000), "--rounds: 0 is outside 1 to 1000"},
		{bounds.Within("--rounds", 1001, 2, 1000, ": one shows no spread"), "--rounds: 1001 is outside 2 to 1000: one shows no spread"},
		{bounds.Within("--keep", 0.5, 0, 1), ""},
		{bounds.Within("--keep", math.NaN(), 0, 1), "--keep: NaN is outside 0 to 1"},
		{bounds.Within("--keep", float32(1.5), 0, 1), "--keep: 1.5 is outside 0 to 1"},
	} {
		if got := c.got; got == nil && c.want != "" || got != nil && got.Error() != c.want {
			t.Errorf("%v, want %q", got, c.want)
		}
	}
}
