package tokenizer

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
)

// formVersion is the version of Unicode that the Rust library's normal forms know.
// A character that is newer has no decomposition and no combining class there. Of
// 12.1 over 12.0 there is one, U+32FF.
const formVersion = "12.0.0"

// unicodeForm is one of the four normal forms. The algorithm is here and only the
// data are x/text's: that package breaks up runs of more than thirty combining
// marks with U+034F, and knows characters that the Rust library does not.
type unicodeForm struct {
	form    norm.Form // for the quick check: what it finds normal is
	full    norm.Form // NFD or NFKD, for the decompositions
	compose map[[2]rune]rune
	known   *unicode.RangeTable
}

func newUnicodeForm(name string) *unicodeForm {
	f := &unicodeForm{known: rangetable.Merge(rangetable.Assigned(formVersion), rangetable.New('\u32FF'))}
	switch name {
	case "NFC":
		f.form, f.full = norm.NFC, norm.NFD
	case "NFD":
		f.form, f.full = norm.NFD, norm.NFD
	case "NFKC":
		f.form, f.full = norm.NFKC, norm.NFKD
	case "NFKD":
		f.form, f.full = norm.NFKD, norm.NFKD
	}
	if name == "NFC" || name == "NFKC" {
		f.compose = f.compositions()
	}
	return f
}

// The range in which all characters with a canonical decomposition are.
const (
	firstComposite = 0xC0
	lastComposite  = 0x2FA1D
)

// compositions are the pairs that become one character: those that a character
// decomposes to in one step, if composing gives it back.
func (f *unicodeForm) compositions() map[[2]rune]rune {
	pairs := make(map[[2]rune]rune)
	for r := rune(firstComposite); r <= lastComposite; r++ {
		if r == hangulFirst {
			r = hangulLast
			continue
		}
		char := string(r)
		full := norm.NFD.PropertiesString(char).Decomposition()
		if utf8.RuneCount(full) < 2 || !f.knows(r) || norm.NFC.String(char) != char {
			continue
		}
		last, size := utf8.DecodeLastRune(full)
		first, _ := utf8.DecodeRuneInString(norm.NFC.String(string(full[:len(full)-size])))
		pairs[[2]rune{first, last}] = r
	}
	return pairs
}

func (f *unicodeForm) knows(r rune) bool { return unicode.Is(f.known, r) }

// mark is a character with its combining class.
type mark struct {
	r     rune
	class uint8
}

func (f *unicodeForm) apply(s string, stop func() error) (string, error) {
	normal := f.form.QuickSpanString(s)
	if normal == len(s) {
		return s, nil
	}
	w := formWriter{f: f, stop: stop, out: append(make([]byte, 0, len(s)+len(s)/8), s[:normal]...)}
	checks := newPace(stop)
	var buffer [4]byte
	for i := normal; i < len(s); {
		if err := checks.at(i); err != nil {
			return "", err
		}
		r, size := decode(s, i)
		if r < 0 { // no character: nothing combines with it
			w.flush()
			w.out = append(w.out, s[i])
			i++
			continue
		}
		i += size
		switch {
		case r < firstNonASCII || !f.knows(r):
			w.add(mark{r: r})
		case r >= hangulFirst && r <= hangulLast:
			n := r - hangulFirst
			w.add(mark{r: hangulL + n/hangulVT})
			w.add(mark{r: hangulV + n%hangulVT/hangulTs})
			if t := n % hangulTs; t > 0 {
				w.add(mark{r: hangulT + t})
			}
		default:
			p := f.full.Properties(utf8.AppendRune(buffer[:0], r))
			full := p.Decomposition()
			if full == nil {
				w.add(mark{r, p.CCC()})
				continue
			}
			for len(full) > 0 {
				part, size := utf8.DecodeRune(full)
				w.add(mark{part, f.full.Properties(full).CCC()})
				full = full[size:]
			}
		}
	}
	w.flush()
	return string(w.out), w.err
}

const firstNonASCII = utf8.RuneSelf

// Hangul syllables are arithmetic: section 3.12 of the Unicode standard.
const (
	hangulFirst, hangulLast   = 0xAC00, 0xD7A3
	hangulL, hangulV, hangulT = 0x1100, 0x1161, 0x11A7
	hangulLs, hangulVs        = 19, 21
	hangulTs                  = 28
	hangulVT                  = hangulVs * hangulTs
)

func (f *unicodeForm) pair(a, b rune) (rune, bool) {
	switch {
	case a >= hangulL && a < hangulL+hangulLs && b >= hangulV && b < hangulV+hangulVs:
		return hangulFirst + ((a-hangulL)*hangulVs+b-hangulV)*hangulTs, true
	case a >= hangulFirst && a <= hangulLast && (a-hangulFirst)%hangulTs == 0 && b > hangulT && b < hangulT+hangulTs:
		return a + b - hangulT, true
	}
	r, ok := f.compose[[2]rune{a, b}]
	return r, ok
}

// formWriter orders and composes what has been decomposed. A segment is a character
// of class 0 and the marks behind it; the one before it is held back while it may
// still compose with this one.
type formWriter struct {
	f       *unicodeForm
	segment []mark
	held    []mark
	sorted  []mark // scratch
	out     []byte
	stop    func() error
	err     error // of stop: what is written no longer matters
}

func (w *formWriter) add(m mark) {
	if m.class == 0 && len(w.segment) > 0 {
		w.end()
	}
	w.segment = append(w.segment, m)
}

// end closes the segment.
func (w *formWriter) end() {
	marks := w.segment
	if len(marks) > 0 && marks[0].class == 0 {
		marks = marks[1:]
	}
	if len(marks) > 1 {
		w.sort(marks)
	}
	if w.f.compose == nil {
		w.write(w.segment)
		w.segment = w.segment[:0]
		return
	}
	if len(w.held) == 1 && w.held[0].class == 0 && w.segment[0].class == 0 {
		if r, ok := w.f.pair(w.held[0].r, w.segment[0].r); ok {
			w.segment[0].r = r
			w.held = w.held[:0]
		}
	}
	w.write(w.held)
	if w.segment[0].class == 0 {
		w.segment = w.compose(w.segment)
	}
	w.held, w.segment = w.segment, w.held[:0]
}

// insertedMarks is how many marks are sorted by insertion, which takes quadratic time.
const insertedMarks = 16

// sort sorts marks by class, stably, in linear time: a text may be one run of marks.
func (w *formWriter) sort(marks []mark) {
	if len(marks) <= insertedMarks {
		slices.SortStableFunc(marks, func(a, b mark) int { return int(a.class) - int(b.class) })
		return
	}
	var starts [257]int // of each class, in what is sorted
	for i, m := range marks {
		if i%bytesPerCheck == 0 && w.ended() {
			return
		}
		starts[int(m.class)+1]++
	}
	for class := range 256 {
		starts[class+1] += starts[class]
	}
	w.sorted = append(w.sorted[:0], marks...)
	for i, m := range w.sorted {
		if i%bytesPerCheck == 0 && w.ended() {
			return
		}
		marks[starts[m.class]] = m
		starts[m.class]++
	}
}

// ended says whether the work is no longer wanted.
func (w *formWriter) ended() bool {
	if w.err == nil {
		w.err = w.stop()
	}
	return w.err != nil
}

// compose puts marks into the character that they follow. A mark is blocked by one
// of its own class before it that was left.
func (w *formWriter) compose(segment []mark) []mark {
	left := 1
	blocked := uint8(0)
	for i, m := range segment[1:] {
		if i%bytesPerCheck == bytesPerCheck-1 && w.ended() {
			break
		}
		if m.class > blocked {
			if r, ok := w.f.pair(segment[0].r, m.r); ok {
				segment[0].r = r
				continue
			}
		}
		blocked = m.class
		segment[left] = m
		left++
	}
	return segment[:left]
}

func (w *formWriter) write(marks []mark) {
	for i, m := range marks {
		if i%bytesPerCheck == bytesPerCheck-1 && w.ended() {
			return
		}
		w.out = utf8.AppendRune(w.out, m.r)
	}
}

func (w *formWriter) flush() {
	if len(w.segment) > 0 {
		w.end()
	}
	w.write(w.held)
	w.held = w.held[:0]
}
