package measure

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SLO is a service's latency objectives.
type SLO struct {
	Terms []Term
}

// Term is one objective: "ttft:p99<500ms".
type Term struct {
	// Latency is one of SLOLatencies.
	Latency string
	// Percentile is above 0 and below 100, or 100 for the maximum.
	Percentile float64
	// Bound is positive.
	Bound time.Duration
	// Inclusive: the bound itself is met ("<=").
	Inclusive bool
}

// Limits of an SLO.
const (
	maxObjectives = 32
	maxPrecision  = 6 // decimal places of a percentile
	maxBound      = time.Hour
)

// sloLatencies lists SLOLatencies for messages.
const sloLatencies = "ttft, second_token, itl, tpot or e2e"

// SLOLatencies are the latencies that a term may name.
func SLOLatencies() []string { return []string{"ttft", "second_token", "itl", "tpot", "e2e"} }

// Within reports whether a latency meets the bound.
func (t Term) Within(d time.Duration) bool {
	return d < t.Bound || t.Inclusive && d == t.Bound
}

// Quantile is the percentile's name: "p99", "p99.9", "max".
func (t Term) Quantile() string {
	if t.Percentile == 100 {
		return "max"
	}
	return "p" + strconv.FormatFloat(t.Percentile, 'f', -1, 64)
}

// String formats the term for ParseSLO.
func (t Term) String() string {
	sign := "<"
	if t.Inclusive {
		sign = "<="
	}
	return t.Latency + ":" + t.Quantile() + sign + t.Bound.String()
}

// String formats the objectives for ParseSLO; empty without any.
func (s SLO) String() string {
	terms := make([]string, len(s.Terms))
	for i, t := range s.Terms {
		terms[i] = t.String()
	}
	return strings.Join(terms, ",")
}

// Bound is the bound on a latency that nearly all requests have to keep: of several that of
// the highest percentile; 0 without any.
func (s SLO) Bound(latency string) (bound time.Duration) {
	highest := 0.0
	for _, t := range s.Terms {
		if t.Latency == latency && t.Percentile > highest {
			highest, bound = t.Percentile, t.Bound
		}
	}
	return bound
}

// objectiveForm matches latency, percentile, sign and bound, optionally separated by
// spaces.
var objectiveForm = regexp.MustCompile(`^\s*(.*?)\s*:\s*(.*?)\s*<(=?)\s*(.*?)\s*$`)

// ParseSLO parses objectives such as "ttft:p99<500ms,tpot:p99<30ms,e2e:p90<=2s,
// itl:max<1s". Spaces between parts are allowed; an empty text has no objectives. The
// error names the objective.
func ParseSLO(text string) (SLO, error) {
	var slo SLO
	if strings.TrimSpace(text) == "" {
		return slo, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		t, err := parseTerm(part)
		same := func(other Term) bool { return other.Latency == t.Latency && other.Percentile == t.Percentile }
		switch {
		case err != nil:
		case slices.ContainsFunc(slo.Terms, same):
			err = fmt.Errorf("a second bound for %s:%s: keep one", t.Latency, t.Quantile())
		case len(slo.Terms) == maxObjectives:
			err = fmt.Errorf("more than %d objectives", maxObjectives)
		}
		if err != nil {
			return SLO{}, fmt.Errorf("objective %.80q: %w", strings.TrimSpace(part), err)
		}
		slo.Terms = append(slo.Terms, t)
	}
	return slo, nil
}

func parseTerm(text string) (t Term, err error) {
	parts := objectiveForm.FindStringSubmatch(text)
	if parts == nil {
		return t, errors.New("expected a latency, a percentile and a duration, as in ttft:p99<500ms")
	}
	t.Latency, t.Inclusive = parts[1], parts[3] != ""
	if !slices.Contains(SLOLatencies(), t.Latency) {
		return t, fmt.Errorf("expected a latency (%s), found %.40q", sloLatencies, t.Latency)
	}
	if t.Percentile, err = parsePercentile(parts[2]); err != nil {
		return t, err
	}
	if t.Bound, err = time.ParseDuration(parts[4]); err != nil {
		return t, fmt.Errorf("expected a duration with its unit (500ms, 1.5s), found %.40q", parts[4])
	}
	if t.Bound <= 0 || t.Bound > maxBound {
		return t, fmt.Errorf("a bound of %v: it must be above 0 and at most %v", t.Bound, maxBound)
	}
	return t, nil
}

func parsePercentile(text string) (float64, error) {
	if text == "max" {
		return 100, nil
	}
	digits, isP := strings.CutPrefix(text, "p")
	v, err := strconv.ParseFloat(digits, 64)
	if !isP || err != nil || strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("expected a percentile (p50, p99, p99.9, … or max), found %.40q", text)
	}
	_, fraction, _ := strings.Cut(digits, ".")
	switch {
	case len(fraction) > maxPrecision:
		return 0, fmt.Errorf("a percentile with more than %d digits after the point", maxPrecision)
	case v > 0 && v < 100:
		return v, nil
	case strings.HasPrefix(digits, "99") && fraction == "":
		return 0, fmt.Errorf("%.40s is not a percentile: it must be above 0 and below 100; write p99.%.40s", text, digits[2:])
	}
	return 0, fmt.Errorf("%.40s is not a percentile: it must be above 0 and below 100", text)
}
