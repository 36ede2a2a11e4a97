package routing

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"time"
)

const (
	// gapBuckets is how many buckets Gaps has; each is √2 times as wide as the one
	// before, so a quantile is at most that factor too long.
	gapBuckets = 32
	// gapLeast is the upper bound of the first bucket; the last takes all above 16 s.
	gapLeast = 500 * time.Microsecond
	// gapsKept is about how many of the last gaps of a worker count.
	gapsKept = 4096
	// gapsEnough is from how many on they say something: of fewer the p99 is the
	// longest.
	gapsEnough = 100
)

// Gaps is a histogram of the times between a worker's tokens. The zero value is empty.
type Gaps struct {
	total  uint32 // beside the counts that are the most: both are written for every token
	counts [gapBuckets]uint32
}

// Add counts one gap.
func (g *Gaps) Add(gap time.Duration) {
	g.counts[gapBucket(gap)]++
	g.total++
}

// gapBucket is the first bucket whose bound a gap does not exceed.
func gapBucket(gap time.Duration) int {
	if gap <= gapLeast {
		return 0
	}
	bucket := 2*bits.Len64(uint64(gap/gapLeast)) - 2 // its bound is a power of two that is not above the gap
	for bucket < gapBuckets-1 && gap > gapBounds[bucket] {
		bucket++
	}
	return min(bucket, gapBuckets-1)
}

// gapBounds are the upper bounds of the buckets.
var gapBounds = func() (bounds [gapBuckets]time.Duration) {
	for i := range bounds {
		bounds[i] = time.Duration(float64(gapLeast) * math.Exp2(float64(i)/2))
	}
	return bounds
}()

// AppendBinary appends the counts, for UnmarshalBinary. It does not fail.
func (g Gaps) AppendBinary(b []byte) ([]byte, error) {
	for i, n := range g.counts {
		if n > 0 {
			b = binary.AppendUvarint(append(b, byte(i)), uint64(n))
		}
	}
	return b, nil
}

// UnmarshalBinary reads what AppendBinary wrote.
func (g *Gaps) UnmarshalBinary(data []byte) error {
	*g = Gaps{}
	for len(data) > 0 {
		count, n := binary.Uvarint(data[1:])
		if n <= 0 || data[0] >= gapBuckets || count > math.MaxUint32 {
			return errors.New("these are no gaps between tokens")
		}
		g.counts[data[0]] = uint32(count)
		g.total += uint32(count)
		data = data[1+n:]
	}
	return nil
}

// Count is how many gaps it holds.
func (g *Gaps) Count() int { return int(g.total) }

// merge adds those of o, and halves all once they are too many: the old ones fade.
func (g *Gaps) merge(o *Gaps) {
	for i, n := range o.counts {
		g.counts[i] += n
	}
	g.total += o.total
	for g.total > gapsKept {
		g.total = 0
		for i := range g.counts {
			g.counts[i] /= 2
			g.total += g.counts[i]
		}
	}
}

// mean is about the mean of the gaps, of which there are some: each counts as the middle of its
// bucket.
func (g *Gaps) mean() time.Duration {
	sum := float64(g.counts[0]) * float64(gapLeast) / 2
	for i := 1; i < gapBuckets; i++ {
		sum += float64(g.counts[i]) * float64(gapBounds[i]) * (1 + 1/math.Sqrt2) / 2
	}
	return time.Duration(sum / float64(g.total))
}

// p99 is an upper bound of the gap that one in a hundred exceeds; false if too few
// are known.
func (g *Gaps) p99() (time.Duration, bool) {
	if g.total < gapsEnough {
		return 0, false
	}
	above := g.total / 100
	for i := gapBuckets - 1; i > 0; i-- {
		if g.counts[i] > above {
			return gapBounds[i], true
		}
		above -= g.counts[i]
	}
	return gapLeast, true
}
