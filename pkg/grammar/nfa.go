package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// maxNFANodes bounds the automaton of one regular expression.
const maxNFANodes = 1 << 15

// nfa is a nondeterministic automaton over bytes, made back to front: each node knows the next.
type nfa struct {
	nodes []nfaNode
	start int32
	// json has characters written as in a JSON string: those that must not stand there by
	// themselves, as their escapes.
	json   bool
	shared map[nfaNode]int32 // nodes of byte ranges that are the same
	of     *lexemes
}

type nfaNode struct {
	kind   nfaKind
	lo, hi byte  // of nfaBytes
	out    int32 // where it leads
	other  int32 // of nfaSplit
}

type nfaKind uint8

const (
	nfaMatch nfaKind = iota
	nfaBytes
	nfaSplit
	nfaFail
)

// maxNFATotal bounds the automata of all expressions of a grammar together.
const maxNFATotal = 1 << 19

// nfa is an automaton of a match alone, which is node 0.
func (l *lexemes) nfa(json bool) *nfa {
	return &nfa{nodes: []nfaNode{{kind: nfaMatch}}, json: json, shared: make(map[nfaNode]int32), of: l}
}

// errTooLarge is why an expression is refused.
var errTooLarge = fmt.Errorf("is too large: repeat less, or a smaller part (the limit is %d states)", maxNFANodes)

func (n *nfa) add(node nfaNode) (int32, error) {
	if node.kind == nfaBytes {
		if at, is := n.shared[node]; is {
			return at, nil
		}
	}
	if n.of.nodes++; len(n.nodes) >= maxNFANodes || n.of.nodes > maxNFATotal {
		return 0, errTooLarge
	}
	if err := n.of.tick(1); err != nil {
		return 0, err
	}
	n.nodes = append(n.nodes, node)
	at := int32(len(n.nodes) - 1)
	if node.kind == nfaBytes {
		n.shared[node] = at
	}
	return at, nil
}

func (n *nfa) split(a, b int32) (int32, error) {
	return n.add(nfaNode{kind: nfaSplit, out: a, other: b})
}

// literal goes on with some bytes before next.
func (n *nfa) literal(text string, next int32) (int32, error) {
	var err error
	for i := len(text) - 1; i >= 0 && err == nil; i-- {
		next, err = n.add(nfaNode{kind: nfaBytes, lo: text[i], hi: text[i], out: next})
	}
	return next, err
}

// oneOf goes on with one of some texts from a byte on, and ends. They are sorted, differ, and are
// the same before that byte: what they begin with is there once.
func (n *nfa) oneOf(texts []string, from int) (int32, error) {
	first, last := texts[0], texts[len(texts)-1]
	at := from // up to where they are the same: sorted, all share what the first and the last do
	for at < len(first) && first[at] == last[at] {
		at++
	}
	all := int32(-1)
	if len(first) == at {
		all, texts = 0, texts[1:]
	}
	for len(texts) > 0 {
		b, same := texts[0][at], 1
		for same < len(texts) && texts[same][at] == b {
			same++
		}
		one, err := n.oneOf(texts[:same], at)
		if err != nil {
			return 0, err
		}
		if all < 0 {
			all = one
		} else if all, err = n.split(one, all); err != nil {
			return 0, err
		}
		texts = texts[same:]
	}
	return n.literal(first[from:at], all)
}

// expression goes on with an expression before next.
func (n *nfa) expression(re *syntax.Regexp, next int32) (int32, error) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return next, nil
	case syntax.OpNoMatch:
		return n.add(nfaNode{kind: nfaFail})
	case syntax.OpLiteral:
		var err error
		for i := len(re.Rune) - 1; i >= 0 && err == nil; i-- {
			next, err = n.character(re.Rune[i], re.Flags&syntax.FoldCase != 0, next)
		}
		return next, err
	case syntax.OpCharClass:
		return n.class(re.Rune, next)
	case syntax.OpAnyCharNotNL:
		return n.class([]rune{0, '\n' - 1, '\n' + 1, '\r' - 1, '\r' + 1, 0x2027, 0x202A, unicode.MaxRune}, next)
	case syntax.OpAnyChar:
		return n.class([]rune{0, unicode.MaxRune}, next)
	case syntax.OpCapture:
		return n.expression(re.Sub[0], next)
	case syntax.OpConcat:
		var err error
		for i := len(re.Sub) - 1; i >= 0 && err == nil; i-- {
			next, err = n.expression(re.Sub[i], next)
		}
		return next, err
	case syntax.OpAlternate:
		return n.alternate(re.Sub, next)
	case syntax.OpQuest:
		return n.repeat(re.Sub[0], 0, 1, next)
	case syntax.OpStar:
		return n.repeat(re.Sub[0], 0, -1, next)
	case syntax.OpPlus:
		return n.repeat(re.Sub[0], 1, -1, next)
	case syntax.OpRepeat:
		return n.repeat(re.Sub[0], re.Min, re.Max, next)
	case syntax.OpBeginText, syntax.OpEndText, syntax.OpBeginLine, syntax.OpEndLine:
		return 0, fmt.Errorf("%s is supported only at the beginning or end of an alternative", re)
	}
	return 0, fmt.Errorf("%s is not supported", re)
}

func (n *nfa) alternate(subs []*syntax.Regexp, next int32) (int32, error) {
	all := int32(-1)
	for i := len(subs) - 1; i >= 0; i-- {
		one, err := n.expression(subs[i], next)
		if err != nil {
			return 0, err
		}
		if all < 0 {
			all = one
		} else if all, err = n.split(one, all); err != nil {
			return 0, err
		}
	}
	return all, nil
}

// repeat is low to high times an expression; a high below 0 is any number.
func (n *nfa) repeat(re *syntax.Regexp, low, high int, next int32) (int32, error) {
	var err error
	if high < 0 {
		loop, err := n.split(0, next)
		if err != nil {
			return 0, err
		}
		body, err := n.expression(re, loop)
		if err != nil {
			return 0, err
		}
		n.nodes[loop].out = body
		next = loop
	}
	end := next
	for range max(high-low, 0) {
		var body int32
		if body, err = n.expression(re, next); err != nil {
			return 0, err
		}
		if next, err = n.split(body, end); err != nil {
			return 0, err
		}
	}
	for range low {
		if next, err = n.expression(re, next); err != nil {
			return 0, err
		}
	}
	return next, nil
}

func (n *nfa) character(r rune, fold bool, next int32) (int32, error) {
	ranges := []rune{r, r}
	if fold {
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			ranges = append(ranges, other, other)
		}
	}
	return n.class(ranges, next)
}

// class is one character of some ranges, each of two runes.
func (n *nfa) class(ranges []rune, next int32) (int32, error) {
	var starts []int32
	for i := 0; i+1 < len(ranges); i += 2 {
		for _, part := range n.parts(ranges[i], ranges[i+1]) {
			if part.escape != "" {
				start, err := n.literal(part.escape, next)
				if err != nil {
					return 0, err
				}
				starts = append(starts, start)
				continue
			}
			for _, seq := range utf8Sequences(nil, part.lo, part.hi) {
				start := next
				for j := len(seq) - 1; j >= 0; j-- {
					var err error
					if start, err = n.add(nfaNode{kind: nfaBytes, lo: seq[j][0], hi: seq[j][1], out: start}); err != nil {
						return 0, err
					}
				}
				starts = append(starts, start)
			}
		}
	}
	if len(starts) == 0 {
		return n.add(nfaNode{kind: nfaFail})
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	all := starts[0]
	for _, start := range starts[1:] {
		var err error
		if all, err = n.split(start, all); err != nil {
			return 0, err
		}
	}
	return all, nil
}

// part is a range of characters that are written as they are, or one that has an escape.
type part struct {
	lo, hi rune
	escape string
}

// parts is how the characters of a range are written.
func (n *nfa) parts(lo, hi rune) []part {
	if !n.json {
		return []part{{lo: lo, hi: hi}}
	}
	var out []part
	for r := lo; r <= min(hi, 0x1F); r++ {
		out = append(out, part{escape: escaped(r)})
	}
	for _, free := range [][2]rune{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, unicode.MaxRune}} {
		if from, to := max(lo, free[0]), min(hi, free[1]); from <= to {
			out = append(out, part{lo: from, hi: to})
		}
	}
	for _, r := range `"\` {
		if lo <= r && r <= hi {
			out = append(out, part{escape: escaped(r)})
		}
	}
	return out
}

// escaped is how a character is written in a JSON string that cannot stand there.
func escaped(r rune) string {
	switch r {
	case '"', '\\':
		return `\` + string(r)
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// utf8Sequences appends the sequences of byte ranges that are the UTF-8 of a range of runes,
// surrogates left out.
func utf8Sequences(dst [][][2]byte, lo, hi rune) [][][2]byte {
	if lo > hi {
		return dst
	}
	const surrogateMin, surrogateMax = 0xD800, 0xDFFF
	if lo <= surrogateMax && hi >= surrogateMin {
		dst = utf8Sequences(dst, lo, min(hi, surrogateMin-1))
		return utf8Sequences(dst, max(lo, surrogateMax+1), hi)
	}
	for _, last := range []rune{0x7F, 0x7FF, 0xFFFF} { // of those with 1, 2 and 3 bytes
		if lo <= last && hi > last {
			return utf8Sequences(utf8Sequences(dst, lo, last), last+1, hi)
		}
	}
	// Both have as many bytes. All but the first are free where the range is aligned.
	for size := 1; size < utf8.RuneLen(lo); size++ {
		low := rune(1)<<(6*size) - 1
		if lo&^low == hi&^low {
			break
		}
		if lo&low != 0 {
			return utf8Sequences(utf8Sequences(dst, lo, lo|low), lo|low+1, hi)
		}
		if hi&low != low {
			return utf8Sequences(utf8Sequences(dst, lo, hi&^low-1), hi&^low, hi)
		}
	}
	var from, to [utf8.UTFMax]byte
	n := utf8.EncodeRune(from[:], lo)
	utf8.EncodeRune(to[:], hi)
	seq := make([][2]byte, n)
	for i := range seq {
		seq[i] = [2]byte{from[i], to[i]}
	}
	return append(dst, seq)
}

// live says of each node whether a match can be reached from it.
func (n *nfa) live() []bool {
	before := make([][]int32, len(n.nodes))
	for i, node := range n.nodes {
		switch node.kind {
		case nfaSplit:
			before[node.other] = append(before[node.other], int32(i))
			before[node.out] = append(before[node.out], int32(i))
		case nfaBytes:
			before[node.out] = append(before[node.out], int32(i))
		}
	}
	live := make([]bool, len(n.nodes))
	live[0] = true
	for left := []int32{0}; len(left) > 0; {
		at := left[len(left)-1]
		left = left[:len(left)-1]
		for _, b := range before[at] {
			if !live[b] {
				live[b] = true
				left = append(left, b)
			}
		}
	}
	return live
}

// byteClass is lexeme.byteClass: bytes between the same ends of ranges lead to the same.
func (n *nfa) byteClass() *[256]byte {
	var begins [257]bool
	for i := range n.nodes {
		if node := &n.nodes[i]; node.kind == nfaBytes {
			begins[node.lo], begins[int(node.hi)+1] = true, true
		}
	}
	out, first := new([256]byte), byte(0)
	for b := range 256 {
		if begins[b] {
			first = byte(b)
		}
		out[b] = first
	}
	return out
}
