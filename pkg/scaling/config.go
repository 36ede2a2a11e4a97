package scaling

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Range is how many workers a pool may have.
type Range struct{ Min, Max int }

func (r Range) clamp(n int) int { return min(max(n, r.Min), r.Max) }

// MaxWorkers bounds the size of a pool.
const MaxWorkers = 10000

// Bounds are the ranges of both pools. As a flag it takes prefill=1..4,decode=1..4; a pool
// that is left out keeps its range.
type Bounds Pools[Range]

// Config says how sizes follow the load.
type Config struct {
	Bounds Bounds
	// Utilisation is how much of its time, or of its places, a worker should use at most, 0 to 1.
	Utilisation float64
	// DownAfter is how long fewer workers must have been enough before a pool shrinks.
	DownAfter time.Duration
}

// DefaultConfig is the configuration that nobody changed.
func DefaultConfig() Config {
	var c Config
	c.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "")
	return c
}

// RegisterFlags adds the flags, each name after prefix, and with them the defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	c.Bounds = Bounds{Prefill: Range{1, 256}, Decode: Range{1, 256}}
	fs.Var(&c.Bounds, prefix+"scale-bounds", "fewest and most workers that the desired size of each pool may have, as in prefill=1..8,decode=2..16")
	fs.Float64Var(&c.Utilisation, prefix+"scale-utilisation", 0.85, "share of its capacity that a worker should use at most, of which the desired size of a pool follows")
	fs.DurationVar(&c.DownAfter, prefix+"scale-down-after", 5*time.Minute, "how long fewer workers must have been enough before the desired size of a pool goes down")
}

// Validate checks ranges.
func (c Config) Validate() error {
	switch {
	case !(c.Utilisation > 0 && c.Utilisation <= 1):
		return fmt.Errorf("scale-utilisation is %v: it must be above 0, and at most 1", c.Utilisation)
	case c.DownAfter < 0 || c.DownAfter > 24*time.Hour:
		return fmt.Errorf("scale-down-after is %v: it must be from 0 to 24h", c.DownAfter)
	}
	return c.Bounds.Validate()
}

// Validate checks ranges.
func (b Bounds) Validate() error {
	for _, of := range []struct {
		pool string
		Range
	}{{"prefill", b.Prefill}, {"decode", b.Decode}} {
		if of.Min < 0 || of.Max < of.Min || of.Max > MaxWorkers {
			return fmt.Errorf("scale-bounds: %s has %s workers: give two numbers from 0 to %d, the smaller first", of.pool, of.Range, MaxWorkers)
		}
	}
	if b.Prefill.Max+b.Decode.Max == 0 {
		return fmt.Errorf("scale-bounds: no pool may have workers: give one of them more than 0..0")
	}
	return nil
}

// String is as ParseRange reads it.
func (r Range) String() string { return fmt.Sprintf("%d..%d", r.Min, r.Max) }

// ParseRange reads 1..8; a single number is both ends.
func ParseRange(text string) (Range, error) {
	low, high, both := strings.Cut(text, "..")
	if !both {
		high = low
	}
	least, err := strconv.Atoi(low)
	most, errMost := strconv.Atoi(high)
	if err != nil || errMost != nil || least < 0 || most < least || most > MaxWorkers {
		return Range{}, fmt.Errorf("%q is no range of workers: write 1..8, from 0 to %d", text, MaxWorkers)
	}
	return Range{least, most}, nil
}

// Set implements pflag.Value. Empty is the zero Bounds, which String writes so.
func (b *Bounds) Set(text string) error {
	if text == "" {
		*b = Bounds{}
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		pool, of, _ := strings.Cut(strings.TrimSpace(part), "=")
		r, err := ParseRange(of)
		if err != nil {
			return fmt.Errorf("%q: write prefill=1..4,decode=1..4", text)
		}
		switch pool {
		case "prefill":
			b.Prefill = r
		case "decode":
			b.Decode = r
		default:
			return fmt.Errorf("%q: the pools are prefill and decode: write prefill=1..4,decode=1..4", text)
		}
	}
	return nil
}

// String implements pflag.Value.
func (b *Bounds) String() string {
	if *b == (Bounds{}) {
		return ""
	}
	return fmt.Sprintf("prefill=%s,decode=%s", b.Prefill, b.Decode)
}

// Type implements pflag.Value.
func (*Bounds) Type() string { return "pool=MIN..MAX" }
