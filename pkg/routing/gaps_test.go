package routing_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// A gap is counted in the first bucket whose bound it does not exceed; each bound is the square
// root of two times the one before.
func TestGapBuckets(t *testing.T) {
	bucket := func(gap time.Duration) byte {
		var g routing.Gaps
		g.Add(gap)
		text, err := g.AppendBinary(nil)
		if err != nil || len(text) != 2 {
			t.Fatalf("%v gives %v, error %v", gap, text, err)
		}
		return text[0]
	}
	rapid.Check(t, func(t *rapid.T) {
		gap := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "gap")) >> rapid.IntRange(0, 30).Draw(t, "shorter")
		want := min(max(math.Ceil(2*math.Log2(float64(gap)/5e5)), 0), 31)
		if got := float64(bucket(gap)); math.Abs(got-want) > 0 && math.Abs(2*math.Log2(float64(gap)/5e5)-math.Round(2*math.Log2(float64(gap)/5e5))) > 1e-5 {
			t.Fatalf("%v is in bucket %v, want %v", gap, got, want)
		}
	})
	if b := bucket(0); b != 0 {
		t.Errorf("no gap is in bucket %d", b)
	}
}
