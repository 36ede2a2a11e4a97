package latency

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// SLO is what a service promises about its latencies.
type SLO struct {
	Terms []Term
}

// Term is one promise: "ttft:p99<500ms".
type Term struct {
	// Latency is one of SLOLatencies.
	Latency string
	// Percentile is above 0 and below 100, or 100 for the maximum.
	Percentile float64
	// Bound is positive.
	Bound time.Duration
	// Inclusive: the bound itself is good ("<=").
	Inclusive bool
}

// What an SLO may have.
const (
	maxObjectives = 32
	maxPrecision  = 6 // digits of a percentile after the point
	maxBound      = time.Hour
)

// sloLatencies are the latencies that an SLO may name.
const sloLatencies = "ttft, second_token, itl, tpot or e2e"

// SLOLatencies are the latencies that a term may name.
func SLOLatencies() []string { return []string{"ttft", "second_token", "itl", "tpot", "e2e"} }

// Within is whether a latency keeps the bound.
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

// String is the term as ParseSLO reads it.
func (t Term) String() string {
	sign := "<"
	if t.Inclusive {
		sign = "<="
	}
	return t.Latency + ":" + t.Quantile() + sign + t.Bound.String()
}

// String is the objectives as ParseSLO reads them; empty without any.
func (s SLO) String() string {
	terms := make([]string, len(s.Terms))
	for i, t := range s.Terms {
		terms[i] = t.String()
	}
	return strings.Join(terms, ",")
}

// ParseSLO reads objectives such as "ttft:p99<500ms,tpot:p99<30ms,e2e:p90<=2s,
// itl:max<1s": latency, percentile, and what it stays under. Spaces between the
// parts do no harm. An empty text is no objectives. The error names the character,
// from 1, and what was expected there.
func ParseSLO(text string) (SLO, error) {
	p := &sloParser{text: text}
	p.space()
	if p.at == len(text) {
		return SLO{}, nil
	}
	var slo SLO
	for {
		start := p.at
		term, err := p.term()
		if err != nil {
			return SLO{}, err
		}
		for _, other := range slo.Terms {
			if other.Latency == term.Latency && other.Percentile == term.Percentile {
				return SLO{}, p.errorAt(start, "a second bound for "+term.Latency+":"+term.Quantile()+"; keep one")
			}
		}
		if len(slo.Terms) == maxObjectives {
			return SLO{}, p.errorAt(start, fmt.Sprintf("more than %d objectives", maxObjectives))
		}
		slo.Terms = append(slo.Terms, term)
		p.space()
		if p.at == len(text) {
			return slo, nil
		}
		if err := p.literal(",", `"," and the next objective, or the end`); err != nil {
			return SLO{}, err
		}
	}
}

// sloParser reads from left to right; at is a position in bytes.
type sloParser struct {
	text string
	at   int
}

func (p *sloParser) term() (Term, error) {
	var t Term
	p.space()
	start := p.at
	t.Latency = p.word(func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) })
	known := false
	for _, name := range SLOLatencies() {
		known = known || t.Latency == name
	}
	if !known {
		return Term{}, p.expected(start, "a latency ("+sloLatencies+")", t.Latency)
	}
	if err := p.literal(":", `":" and a percentile, as in `+t.Latency+":p99<500ms"); err != nil {
		return Term{}, err
	}
	percentile, err := p.percentile()
	if err != nil {
		return Term{}, err
	}
	t.Percentile = percentile
	if err := p.literal("<", `"<" or "<=" and a duration`); err != nil {
		return Term{}, err
	}
	if strings.HasPrefix(p.text[p.at:], "=") {
		p.at++
		t.Inclusive = true
	}
	t.Bound, err = p.bound()
	return t, err
}

func (p *sloParser) percentile() (float64, error) {
	const expect = "a percentile (p50, p99, p99.9, … or max)"
	p.space()
	start := p.at
	word := p.word(func(r rune) bool { return r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r) })
	if word == "max" {
		return 100, nil
	}
	digits, isP := strings.CutPrefix(word, "p")
	if !isP || digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, p.expected(start, expect, word)
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, p.expected(start, expect, word)
	}
	if _, fraction, _ := strings.Cut(digits, "."); len(fraction) > maxPrecision {
		return 0, p.errorAt(start, fmt.Sprintf("a percentile with more than %d digits after the point", maxPrecision))
	}
	if v <= 0 || v >= 100 {
		hint := ""
		if strings.HasPrefix(digits, "99") && !strings.Contains(digits, ".") {
			hint = "; write p99." + digits[2:]
		}
		return 0, p.errorAt(start, word+" is no percentile: it is above 0 and below 100"+hint)
	}
	return v, nil
}

func (p *sloParser) bound() (time.Duration, error) {
	const expect = "a duration with its unit (500ms, 1.5s)"
	p.space()
	start := p.at
	word := p.word(func(r rune) bool { return r != ',' && !unicode.IsSpace(r) })
	d, err := time.ParseDuration(word)
	if err != nil {
		return 0, p.expected(start, expect, word)
	}
	if d <= 0 || d > maxBound {
		return 0, p.errorAt(start, fmt.Sprintf("a bound of %v: it is above 0 and at most %v", d, maxBound))
	}
	return d, nil
}

func (p *sloParser) space() {
	p.word(unicode.IsSpace)
}

// word is the longest run of runes that are in.
func (p *sloParser) word(in func(rune) bool) string {
	start := p.at
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if !in(r) {
			break
		}
		p.at += size
	}
	return p.text[start:p.at]
}

func (p *sloParser) literal(want, expect string) error {
	p.space()
	if !strings.HasPrefix(p.text[p.at:], want) {
		found := ""
		if p.at < len(p.text) {
			_, size := utf8.DecodeRuneInString(p.text[p.at:])
			found = p.text[p.at : p.at+size]
		}
		return p.expected(p.at, expect, found)
	}
	p.at += len(want)
	return nil
}

func (p *sloParser) expected(at int, want, found string) error {
	switch {
	case found != "":
		const longest = 40
		if len(found) > longest {
			found = found[:longest] + "…"
		}
		found = strconv.Quote(found)
	case at < len(p.text):
		_, size := utf8.DecodeRuneInString(p.text[at:])
		found = strconv.Quote(p.text[at : at+size])
	default:
		found = "the end"
	}
	return p.errorAt(at, "expected "+want+", found "+found)
}

func (p *sloParser) errorAt(at int, problem string) error {
	return errors.New("objectives, character " + strconv.Itoa(utf8.RuneCountInString(p.text[:at])+1) + ": " + problem)
}
