package grammar

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// bound is one end of a range of numbers.
type bound struct {
	at        *big.Rat // nil: there is none
	exclusive bool
	keyword   subschema // that says so
}

// higher is the stricter of two lower bounds, lower that of two upper ones.
func higher(a, b bound) bound { return stricter(a, b, 1) }
func lower(a, b bound) bound  { return stricter(a, b, -1) }

func stricter(a, b bound, sign int) bound {
	switch {
	case a.at == nil:
		return b
	case b.at == nil:
		return a
	}
	switch c := a.at.Cmp(b.at) * sign; {
	case c > 0:
		return a
	case c < 0:
		return b
	}
	a.exclusive = a.exclusive || b.exclusive
	return a
}

const (
	anyInteger = `(?:0|[1-9][0-9]{0,39})`
	never      = `[^\x{0}-\x{10FFFF}]`
)

// numberLexeme is the lexeme of the numbers of a shape.
func (s *schemas) numberLexeme(of *numberShape) (*lexeme, error) {
	low, high := of.low, of.high
	if of.integer {
		low, high = whole(low, 1), whole(high, -1)
	}
	both := []*bound{&low, &high}
	for _, b := range both {
		if err := s.leaveOut(b, b.check()); err != nil {
			return nil, err
		}
	}
	if low.at != nil || high.at != nil {
		l, err := s.numbers(low, high, of.integer)
		if err == nil {
			return l, nil
		}
		for _, b := range both {
			if err := s.leaveOut(b, err); err != nil {
				return nil, err
			}
		}
	}
	if of.integer {
		return s.expressionOf(integerText), nil
	}
	return s.expressionOf(integerText + fractionText + exponentText), nil
}

// leaveOut removes a bound that numbers cannot be held to, if there is a reason why.
func (s *schemas) leaveOut(b *bound, why error) error {
	if b.at == nil || why == nil {
		return nil
	}
	keyword := b.keyword
	*b = bound{}
	return s.unenforced(keyword.at.name, keyword.errorf("%v", why))
}

// numbers is the lexeme of the numbers within bounds, those that are written with an exponent left
// out; nil: there are none. Equal bounds have the same one.
func (l *lexemes) numbers(low, high bound, integer bool) (*lexeme, error) {
	if integer {
		// Bounds that are integers, and inclusive.
		low, high = whole(low, 1), whole(high, -1)
	}
	key := numberKey{integer: integer, lowExclusive: low.exclusive, highExclusive: high.exclusive}
	if low.at != nil {
		key.low = low.at.RatString()
	}
	if high.at != nil {
		key.high = high.at.RatString()
	}
	if made, is := l.ranges[key]; is {
		return made, nil
	}
	made, err := l.makeNumbers(low, high, integer)
	if err != nil {
		return nil, err
	}
	if l.ranges == nil {
		l.ranges = make(map[numberKey]*lexeme)
	}
	l.ranges[key] = made
	return made, nil
}

// numberKey is what numbers depend on.
type numberKey struct {
	low, high                            string // empty: there is none
	lowExclusive, highExclusive, integer bool
}

func (l *lexemes) makeNumbers(low, high bound, integer bool) (*lexeme, error) {
	for _, b := range []bound{low, high} {
		if err := b.check(); err != nil {
			return nil, err
		}
	}
	fraction := fractionText
	if integer {
		fraction = ""
	}
	var out *lexeme
	for i, text := range []string{from(low, fraction), upTo(high, fraction)} {
		if bounded := []bound{low, high}[i]; bounded.at == nil && (i == 0 || out != nil) {
			continue
		}
		re, err := parseExpression(text)
		if err != nil {
			return nil, err
		}
		one, err := l.expression(re, false)
		if err != nil || one == nil {
			return nil, err
		}
		if out == nil {
			out = one
		} else if out, err = l.both(out, one); err != nil || out == nil {
			return nil, err
		}
	}
	return out, nil
}

// check refuses a bound with too many digits.
func (b bound) check() error {
	if b.at == nil {
		return nil
	}
	if before, after := digits(b.at); len(before) > 39 || len(after) > 39 {
		return errors.New("a bound has more digits than 39 before or after the point")
	}
	return nil
}

// whole is a bound of integers: the next one above for a lower bound (sign 1), below for an upper.
func whole(b bound, sign int64) bound {
	if b.at == nil {
		return b
	}
	if b.at.IsInt() {
		if !b.exclusive {
			return b
		}
		return bound{at: new(big.Rat).Add(b.at, big.NewRat(sign, 1)), keyword: b.keyword}
	}
	floor := new(big.Int).Div(b.at.Num(), b.at.Denom()) // Euclidean: the denominator is positive
	if sign > 0 {
		floor.Add(floor, big.NewInt(1))
	}
	return bound{at: new(big.Rat).SetInt(floor), keyword: b.keyword}
}

// digits are those of a number's magnitude before and after the point, without zeros at the end.
func digits(r *big.Rat) (before, after string) {
	text := new(big.Rat).Abs(r).FloatString(120) // exact: JSON has no other fractions
	before, after, _ = strings.Cut(text, ".")
	return before, strings.TrimRight(after, "0")
}

// from matches the numbers at or above a bound, upTo those at or below.
func from(b bound, fraction string) string {
	if b.at == nil {
		return integerText + fraction
	}
	if b.at.Sign() >= 0 {
		return atLeast(b, fraction)
	}
	return anyInteger + fraction + "|-(?:" + atMost(b, fraction) + ")"
}

func upTo(b bound, fraction string) string {
	switch {
	case b.at == nil:
		return integerText + fraction
	case b.at.Sign() < 0:
		return "-(?:" + atLeast(b, fraction) + ")"
	case b.at.Sign() == 0 && b.exclusive:
		return "-(?:" + atLeast(b, fraction) + ")"
	}
	return atMost(b, fraction) + "|-" + anyInteger + fraction
}

// atLeast matches magnitudes from that of a bound on, atMost those up to it.
func atLeast(b bound, fraction string) string {
	before, after := digits(b.at)
	ways := []string{above(before) + fraction}
	switch {
	case fraction == "":
		ways = append(ways, before) // inclusive: see whole
	case after == "" && !b.exclusive:
		ways = append(ways, before+fraction)
	case after == "":
		ways = append(ways, before+`\.0{0,38}[1-9][0-9]{0,39}`)
	default:
		for i := range after {
			if after[i] < '9' {
				ways = append(ways, fmt.Sprintf(`%s\.%s[%c-9][0-9]{0,39}`, before, after[:i], after[i]+1))
			}
		}
		if b.exclusive {
			ways = append(ways, before+`\.`+after+`0{0,38}[1-9][0-9]{0,39}`)
		} else {
			ways = append(ways, before+`\.`+after+`[0-9]{0,39}`)
		}
	}
	return strings.Join(ways, "|")
}

func atMost(b bound, fraction string) string {
	before, after := digits(b.at)
	ways := []string{below(before) + fraction}
	switch {
	case fraction == "":
		ways = append(ways, before)
	case after == "" && !b.exclusive:
		ways = append(ways, before+`(?:\.0{1,40})?`)
	case after == "":
	default:
		ways = append(ways, before)
		for i := range after {
			if i > 0 {
				ways = append(ways, before+`\.`+after[:i])
			}
			if after[i] > '0' {
				ways = append(ways, fmt.Sprintf(`%s\.%s[0-%c][0-9]{0,39}`, before, after[:i], after[i]-1))
			}
		}
		if !b.exclusive {
			ways = append(ways, before+`\.`+after+`0{0,39}`)
		}
	}
	return strings.Join(ways, "|")
}

// above matches the integers that are larger than one, below those that are smaller.
func above(n string) string {
	if n == "0" {
		return `(?:[1-9][0-9]{0,39})`
	}
	ways := []string{fmt.Sprintf(`[1-9][0-9]{%d,40}`, len(n))}
	for i := range n {
		if n[i] < '9' {
			ways = append(ways, fmt.Sprintf(`%s[%c-9][0-9]{%d}`, n[:i], n[i]+1, len(n)-i-1))
		}
	}
	return "(?:" + strings.Join(ways, "|") + ")"
}

func below(n string) string {
	if n == "0" {
		return never
	}
	ways := []string{"0"}
	if len(n) > 1 {
		ways = append(ways, fmt.Sprintf(`[1-9][0-9]{0,%d}`, len(n)-2))
	}
	for i := range n {
		first := byte('0')
		if i == 0 {
			first = '1'
		}
		if n[i] > first {
			ways = append(ways, fmt.Sprintf(`%s[%c-%c][0-9]{%d}`, n[:i], first, n[i]-1, len(n)-i-1))
		}
	}
	return "(?:" + strings.Join(ways, "|") + ")"
}
