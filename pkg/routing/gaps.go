package routing

import (
	"encoding/binary"
	"errors"
	"math"
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
	counts [gapBuckets]uint32
	total  uint32
}

// Add counts one gap.
func (g *Gaps) Add(gap time.Duration) {
	bucket := 0
	if gap > gapLeast {
		bucket = min(int(math.Ceil(2*math.Log2(float64(gap)/float64(gapLeast)))), gapBuckets-1)
	}
	g.counts[bucket]++
	g.total++
}

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

// p99 is an upper bound of the gap that one in a hundred exceeds; false if too few
// are known.
func (g *Gaps) p99() (time.Duration, bool) {
	if g.total < gapsEnough {
		return 0, false
	}
	above := g.total / 100
	for i := gapBuckets - 1; i > 0; i-- {
		if g.counts[i] > above {
			return time.Duration(float64(gapLeast) * math.Exp2(float64(i)/2)), true
		}
		above -= g.counts[i]
	}
	return gapLeast, true
}
