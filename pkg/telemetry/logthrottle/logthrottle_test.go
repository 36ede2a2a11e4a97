package logthrottle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

func TestDue(t *testing.T) {
	throttle := logthrottle.Throttle{Every: 10 * time.Second, Burst: 1}
	start := time.Unix(1000, 0)
	var got []int // skipped, or -1 where it was not due
	for _, at := range []int{0, 1, 2, 9, 10, 11, 12, 40, 41} {
		skipped, due := throttle.Due(start.Add(time.Duration(at) * time.Second))
		if !due {
			skipped = -1
		}
		got = append(got, skipped)
	}
	if want := []int{0, 0, -1, -1, 2, 0, -1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
