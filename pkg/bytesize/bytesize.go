// Package bytesize has sizes in bytes as flags take them. Any package may import it;
// it imports none of Tandem's and starts no goroutines.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes, written with or without a unit. As a flag's
// value it is between 1 byte and 1024 TiB, or Auto.
type Size int64

// Auto leaves a size to the program. It is written "auto".
const Auto Size = 0

const auto = "auto"

// maxBytes is also within what a float64 holds exactly.
const maxBytes = 1 << 50

// unit is a suffix and what it stands for.
type unit struct {
	suffix string
	bytes  int64
}

// units, in the order in which suffixes have to be tried.
func units() []unit {
	return []unit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}, {"", 1},
	}
}

// Set parses "512MiB", "1.5 GiB", "1000000" and their like.
func (b *Size) Set(text string) error {
	number := strings.TrimSpace(text)
	if number == auto {
		*b = Auto
		return nil
	}
	var factor int64
	for _, u := range units() {
		if rest, found := strings.CutSuffix(number, u.suffix); found {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	value, err := strconv.ParseFloat(number, 64)
	// ParseFloat also takes exponents, hexadecimal, infinities and NaN.
	if err != nil || strings.Trim(number, "0123456789.") != "" {
		return fmt.Errorf("%q is not a size: write 512MiB, 2GiB or a number of bytes", text)
	}
	if value *= float64(factor); value < 1 || value > maxBytes {
		return fmt.Errorf("%q is not between 1B and 1024TiB", text)
	}
	*b = Size(value)
	return nil
}

// String is the size in the largest unit of 1024 that divides it.
func (b *Size) String() string {
	if *b == Auto {
		return auto
	}
	for _, u := range units()[:4] {
		if int64(*b)%u.bytes == 0 {
			return fmt.Sprintf("%d%s", int64(*b)/u.bytes, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", int64(*b))
}

// Type is the name of the type in usage texts.
func (b *Size) Type() string { return "size" }

// Text writes a number of bytes for people, rounded to a tenth; under 0 is 0.
func Text(bytes int64) string {
	bytes = max(bytes, 0)
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%dB", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%dKiB", bytes>>10)
	case bytes < 1<<30:
		return fmt.Sprintf("%.1fMiB", float64(bytes)/(1<<20))
	case bytes < 1<<40:
		return fmt.Sprintf("%.1fGiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1fTiB", float64(bytes)/(1<<40))
}

// ParseRate reads a bandwidth, such as 10GB/s, in bytes per second.
func ParseRate(text string) (float64, error) {
	var size Size
	number, found := strings.CutSuffix(text, "/s")
	if !found || number == auto || size.Set(number) != nil {
		return 0, fmt.Errorf("%q is not a bandwidth: write 10GB/s or 500MB/s", text)
	}
	return float64(size), nil
}
