package workload

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Surge is a time in which requests come Factor times as often. 0 is a pause.
type Surge struct {
	// At counts from the start of the run, its warm-up included.
	At, For time.Duration
	Factor  float64
}

// MaxSurge bounds Surge.Factor.
const MaxSurge = 1000

// surges are all, by time and without overlap; a pflag.Value.
type surges []Surge

const surgeForm = "AT+FOR=FACTOR, as in 30s+1m=2"

// AddSurge adds a surge, which must not overlap with others.
func (s *Spec) AddSurge(surge Surge) error { return s.surges.Set(surge.String()) }

// Set adds a surge.
func (s *surges) Set(text string) error {
	surge, err := parseSurge(text)
	if err != nil {
		return fmt.Errorf("%q: %w: write %s", text, err, surgeForm)
	}
	for _, other := range *s {
		if surge.At < other.At+other.For && other.At < surge.At+surge.For {
			return fmt.Errorf("%q overlaps with %s: one must end before the other begins", text, other)
		}
	}
	*s = append(*s, surge)
	slices.SortFunc(*s, func(a, b Surge) int { return int(a.At - b.At) })
	return nil
}

func parseSurge(text string) (Surge, error) {
	times, factor, found := strings.Cut(text, "=")
	at, length, both := strings.Cut(times, "+")
	if !found || !both {
		return Surge{}, errors.New("not a surge")
	}
	var s Surge
	var err error
	if s.At, err = time.ParseDuration(at); err != nil || s.At < 0 || s.At > maxSurgeTime {
		return Surge{}, fmt.Errorf("%q is no time from 0 to %v", at, maxSurgeTime)
	}
	if s.For, err = time.ParseDuration(length); err != nil || s.For <= 0 || s.For > maxSurgeTime {
		return Surge{}, fmt.Errorf("%q is no time above 0 and up to %v", length, maxSurgeTime)
	}
	if s.Factor, err = strconv.ParseFloat(factor, 64); err != nil || !(s.Factor >= 0 && s.Factor <= MaxSurge) {
		return Surge{}, fmt.Errorf("%q is no factor from 0 to %d", factor, MaxSurge)
	}
	return s, nil
}

// maxSurgeTime bounds the times of surges: no run is longer.
const maxSurgeTime = 24 * time.Hour

func (s *surges) String() string {
	texts := make([]string, 0, len(*s))
	for _, surge := range *s {
		texts = append(texts, surge.String())
	}
	return strings.Join(texts, " ")
}

// Type is the value's name in the help.
func (s *surges) Type() string { return "AT+FOR=FACTOR" }

func (s Surge) String() string { return fmt.Sprintf("%v+%v=%g", s.At, s.For, s.Factor) }

// inverse is the time by which as many requests are expected as by so many seconds of a
// steady rate: the inverse of the factor's integral, after a pause if it lies in one. Putting
// a renewal process through it changes its rate and nothing else.
func (s surges) inverse(steady float64) float64 {
	passed, now := 0.0, 0.0 // of steady time and of real time, at the end of the last surge
	for _, surge := range s {
		before := surge.At.Seconds() - now
		if steady < passed+before {
			break
		}
		passed, now = passed+before, now+before
		length := surge.For.Seconds()
		if steady < passed+length*surge.Factor {
			return now + (steady-passed)/surge.Factor
		}
		passed, now = passed+length*surge.Factor, now+length
	}
	return now + steady - passed
}
