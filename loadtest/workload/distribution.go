package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Distribution of lengths, turns or times. The zero value is unset. It is immutable and
// safe for concurrent use.
type Distribution struct {
	text  string
	shape shape
	// a and b are the parameters: a value; minimum and maximum; mean and standard
	// deviation; µ and σ of the logarithm; or a mean.
	a, b float64
}

type shape uint8

const (
	unset shape = iota
	fixed
	uniform
	normal
	lognormal
	exponential
	empirical
)

// IsSet reports whether it is set.
func (d Distribution) IsSet() bool { return d.shape != unset }

// Empirical reports whether values come from a trace.
func (d Distribution) Empirical() bool { return d.shape == empirical }

// String is the text it was parsed from.
func (d Distribution) String() string { return d.text }

// draw returns one value. Empirical ones are drawn elsewhere, since a prompt and its
// output belong together.
func (d Distribution) draw(random *rand.Rand) float64 {
	switch d.shape {
	case uniform:
		return d.a + random.Float64()*(d.b-d.a)
	case normal:
		return d.a + d.b*random.NormFloat64()
	case lognormal:
		// Not math.Exp, whose last digit depends on whether the processor has FMA.
		return math.Exp2(math.Log2E * (d.a + d.b*random.NormFloat64()))
	case exponential:
		return d.a * random.ExpFloat64()
	default:
		return d.a
	}
}

// count draws an integer, at least 1; smaller values of a normal distribution become 1.
func (d Distribution) count(random *rand.Rand) int {
	if d.shape == uniform { // each integer equally likely, both ends included
		return int(d.a) + random.IntN(int(d.b)-int(d.a)+1)
	}
	return int(math.Round(min(max(d.draw(random), 1), maxCount)))
}

// duration draws a time, at least 0.
func (d Distribution) duration(random *rand.Rand) time.Duration {
	return time.Duration(min(max(d.draw(random), 0), maxWait.Seconds()) * float64(time.Second))
}

const (
	maxCount = 1 << 24
	maxWait  = 24 * time.Hour
)

// unit is what a distribution's numbers measure and how they are written.
type unit struct {
	name         string
	parse        func(text string) (float64, error)
	least, most  float64
	examples     string
	hasEmpirical bool
}

var counts = unit{
	name:  "a number",
	parse: func(text string) (float64, error) { return strconv.ParseFloat(text, 64) },
	least: 1, most: maxCount,
	examples:     "512, uniform:100-900, normal:512,128 or lognormal:512,256 (mean, standard deviation), exp:200 (mean) or empirical (from --trace)",
	hasEmpirical: true,
}

var turnCounts = unit{
	name: counts.name, parse: counts.parse, least: 1, most: 10_000,
	examples: "4, uniform:1-8, normal:4,2 or lognormal:4,2 (mean, standard deviation) or exp:4 (mean)",
}

var waits = unit{
	name: "a duration",
	parse: func(text string) (float64, error) {
		if text == "0" {
			return 0, nil
		}
		d, err := time.ParseDuration(text)
		return d.Seconds(), err
	},
	least: 0, most: maxWait.Seconds(),
	examples: "2s, uniform:1s-10s, normal:5s,1s or lognormal:5s,3s (mean, standard deviation) or exp:5s (mean)",
}

// ParseLengths parses a distribution of token counts: "512" for all, "uniform:100-900"
// including both ends, "normal:MEAN,SD", "lognormal:MEAN,SD", "exp:MEAN", or "empirical"
// for a trace's lengths. MEAN and SD are those of the lengths, not their logarithms,
// before rounding and clamping to 1 and the context.
func ParseLengths(text string) (Distribution, error) { return counts.parseDistribution(text) }

// ParseTurns parses a distribution of turn counts like ParseLengths.
func ParseTurns(text string) (Distribution, error) { return turnCounts.parseDistribution(text) }

// ParseTimes parses a distribution of durations like ParseLengths, with values such as
// 500ms and 2s.
func ParseTimes(text string) (Distribution, error) { return waits.parseDistribution(text) }

func (u unit) parseDistribution(text string) (Distribution, error) {
	text = strings.TrimSpace(text)
	fail := func(format string, args ...any) (Distribution, error) {
		return Distribution{}, fmt.Errorf("%q: %s: write %s", text, fmt.Sprintf(format, args...), u.examples)
	}
	name, values, named := strings.Cut(text, ":")
	d := Distribution{text: text}
	if !named {
		if text == "empirical" && u.hasEmpirical {
			d.shape = empirical
			return d, nil
		}
		d.shape = fixed
		a, err := u.parse(text)
		if err != nil || !u.holds(a) {
			return fail("%s", u.problem(text, err))
		}
		if u.least >= 1 {
			a = math.Round(a)
		}
		d.a = a
		return d, nil
	}
	separator, form := ",", "MEAN,SD"
	switch name {
	case "uniform":
		d.shape, separator, form = uniform, "-", "LEAST-MOST"
	case "normal":
		d.shape = normal
	case "lognormal":
		d.shape = lognormal
	case "exp":
		d.shape, separator, form = exponential, "", "MEAN"
	case "empirical":
		return fail("empirical takes no parameters")
	default:
		return fail("no distribution is called %q", name)
	}
	parts := []string{values}
	if separator != "" {
		parts = strings.Split(values, separator)
	}
	if want := strings.Count(form, separator) + 1; separator != "" && len(parts) != want {
		return fail("%s has %d parameters, but takes %s:%s", name, len(parts), name, form)
	}
	for i, part := range parts {
		part = strings.TrimSpace(part)
		value, err := u.parse(part)
		// A standard deviation may be 0 where values may not.
		if spread := i == 1 && d.shape != uniform; err != nil || (!u.holds(value) && !(spread && value >= 0 && value <= u.most)) {
			return fail("%s", u.problem(part, err))
		}
		if i == 0 {
			d.a = value
		} else {
			d.b = value
		}
	}
	switch d.shape {
	case uniform:
		if u.least >= 1 && (d.a != math.Trunc(d.a) || d.b != math.Trunc(d.b)) {
			return fail("the ends of uniform must be whole numbers")
		}
		if d.b < d.a {
			return fail("%s is more than %s", strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]))
		}
	case lognormal:
		if d.a == 0 {
			return fail("the mean of lognormal must be above 0")
		}
		// For a lognormal variable with mean m and standard deviation s: σ² = ln(1 +
		// s²/m²), µ = ln m − σ²/2.
		variance := math.Log1p((d.b / d.a) * (d.b / d.a))
		d.a, d.b = math.Log(d.a)-variance/2, math.Sqrt(variance)
	}
	return d, nil
}

func (u unit) holds(value float64) bool { return value >= u.least && value <= u.most }

func (u unit) problem(text string, err error) string {
	if err != nil {
		return fmt.Sprintf("%q is not %s", text, u.name)
	}
	if u.least >= 1 {
		return fmt.Sprintf("%s is out of range, from %g to %.0f", text, u.least, u.most)
	}
	return fmt.Sprintf("%s is out of range, from 0 to %s", text, maxWait)
}

// distributionFlag adapts a distribution to pflag.Value.
type distributionFlag struct {
	to    *Distribution
	parse func(string) (Distribution, error)
	kind  string
}

func (f distributionFlag) String() string {
	if f.to == nil {
		return ""
	}
	return f.to.text
}

func (f distributionFlag) Set(text string) (err error) {
	d, err := f.parse(text)
	if err == nil {
		*f.to = d
	}
	return err
}

func (f distributionFlag) Type() string { return f.kind }
