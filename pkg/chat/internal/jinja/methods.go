package jinja

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// method makes a function of a method of a value.
func method(name string, call func(m *machine, p parameters) any) *function {
	return &function{name, func(m *machine, args []any, named *Dict) any {
		defer blame("%s: %w", name)
		return call(m, parameters{args: args, named: named})
	}}
}

// refused is a method that would change a value.
func refused(name string) *function {
	return method(name, func(*machine, parameters) any {
		return fail("chat templates may not change lists and dictionaries")
	})
}

func dictMethod(d *Dict, name string) *function {
	switch name {
	case "items":
		return method(name, func(m *machine, _ parameters) any { return m.pairs(d) })
	case "keys":
		return method(name, func(m *machine, _ parameters) any { return list(m.iterate(d)) })
	case "values":
		return method(name, func(m *machine, _ parameters) any {
			m.spend(len(d.values))
			return list(d.values)
		})
	case "get":
		return method(name, func(m *machine, p parameters) any {
			key, ok := p.get(0, "key")
			if !ok {
				return failWith(errNoItems)
			}
			if v, ok := m.find(d, key); ok {
				return v
			}
			otherwise, _ := p.get(1, "default")
			return otherwise
		})
	case "copy":
		return method(name, func(*machine, parameters) any { return d })
	case "update", "pop", "popitem", "setdefault", "clear":
		return refused(name)
	}
	return nil
}

func listMethod(l *List, name string) *function {
	switch name {
	case "index", "count":
		return method(name, func(m *machine, p parameters) any {
			want, ok := p.get(0, "value")
			if !ok {
				return failWith(errNoItems)
			}
			items, before := l.Items, 0
			if len(p.args) > 1 && name == "count" {
				return fail("takes one value")
			} else if len(p.args) > 1 {
				start, end, is := p.bounds(1, len(items))
				if !is {
					return fail("the value is not in the list")
				}
				items, before = items[start:end], start
			}
			n := int64(0)
			for i, v := range items {
				m.weigh(v)
				switch {
				case !equal(v, want):
				case name == "index":
					return int64(before + i)
				default:
					n++
				}
			}
			if name == "index" {
				return fail("the value is not in the list")
			}
			return n
		})
	case "copy":
		return method(name, func(*machine, parameters) any { return l })
	case "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse":
		if !l.tuple {
			return refused(name)
		}
	}
	return nil
}

// plainMethods are methods of strings that take nothing.
var plainMethods = map[string]func(s string) any{
	"upper":      func(s string) any { return upper(s) },
	"lower":      func(s string) any { return strings.ToLower(s) },
	"casefold":   func(s string) any { return strings.ToLower(strings.ReplaceAll(s, "ß", "ss")) },
	"title":      func(s string) any { return titleCase(s) },
	"capitalize": func(s string) any { return capitalize(s) },
	"swapcase":   func(s string) any { return swapCase(s) },
	"isdigit":    func(s string) any { return all(s, unicode.IsDigit) },
	"isnumeric":  func(s string) any { return all(s, unicode.IsNumber) },
	"isdecimal":  func(s string) any { return all(s, unicode.IsDigit) },
	"isalpha":    func(s string) any { return all(s, unicode.IsLetter) },
	"isalnum": func(s string) any {
		return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	},
	"isspace": func(s string) any { return all(s, isSpace) },
	"isupper": func(s string) any { return cased(s, unicode.IsLower, unicode.IsUpper) },
	"islower": func(s string) any { return cased(s, unicode.IsUpper, unicode.IsLower) },
	"isascii": func(s string) any { return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) },
}

func all(s string, is func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !is(r) })
}

// titleCase is str.title: a word begins behind whatever is no letter.
func titleCase(s string) string {
	var out strings.Builder
	begins := true
	for _, r := range s {
		if begins {
			out.WriteRune(unicode.ToTitle(r))
		} else {
			out.WriteRune(unicode.ToLower(r))
		}
		begins = !unicode.IsLetter(r)
	}
	return out.String()
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}

func stringMethod(s, name string) *function {
	if plain, ok := plainMethods[name]; ok {
		return method(name, func(m *machine, _ parameters) any {
			m.spendTimes(len(s), 2*runeCost)
			return plain(s)
		})
	}
	run := textMethod(s, name)
	if run == nil {
		return nil
	}
	return method(name, func(m *machine, p parameters) any {
		m.spend(len(s))
		return run(m, p)
	})
}

func textMethod(s, name string) func(m *machine, p parameters) any {
	switch name {
	case "strip", "lstrip", "rstrip":
		return func(m *machine, p parameters) any { return m.strip(s, name, p) }
	case "split", "rsplit":
		return func(m *machine, p parameters) any { return m.split(s, name == "rsplit", p) }
	case "splitlines":
		return func(m *machine, p parameters) any { return list(m.splitLines(s, p.truth(0, "keepends", false))) }
	case "partition", "rpartition":
		return func(_ *machine, p parameters) any {
			separator, err := p.asText(0, "sep", "")
			if err != nil || separator == "" {
				return failWith(errors.Join(err, errors.New("the separator is empty")))
			}
			at := strings.Index(s, separator)
			if name == "rpartition" {
				at = strings.LastIndex(s, separator)
			}
			switch {
			case at >= 0:
				return tuple(s[:at], separator, s[at+len(separator):])
			case name == "partition":
				return tuple(s, "", "")
			}
			return tuple("", "", s)
		}
	case "startswith", "endswith":
		return func(m *machine, p parameters) any { return m.affixed(s, name == "startswith", p) }
	case "removeprefix", "removesuffix":
		return func(_ *machine, p parameters) any {
			part := p.text(0, "part", "")
			if name == "removeprefix" {
				return strings.TrimPrefix(s, part)
			}
			return strings.TrimSuffix(s, part)
		}
	case "replace":
		return func(m *machine, p parameters) any { return replaced(m, s, p) }
	case "find", "rfind", "index", "rindex":
		return func(_ *machine, p parameters) any {
			part := p.text(0, "sub", "")
			in, before, is := within(s, p)
			at := -1
			switch {
			case !is:
			case strings.HasPrefix(name, "r"):
				at = strings.LastIndex(in, part)
			default:
				at = strings.Index(in, part)
			}
			if at < 0 && strings.HasSuffix(name, "index") {
				return fail("the text is not found")
			}
			if at < 0 {
				return int64(-1)
			}
			return int64(before + utf8.RuneCountInString(in[:at]))
		}
	case "count":
		return func(_ *machine, p parameters) any {
			part := p.text(0, "sub", "")
			in, _, is := within(s, p)
			if !is {
				return int64(0)
			}
			return int64(strings.Count(in, part))
		}
	case "join":
		return func(m *machine, p parameters) any { return m.joinStrings(s, p) }
	case "zfill", "ljust", "rjust", "center":
		return func(m *machine, p parameters) any { return m.justified(s, name, p) }
	case "format", "format_map", "encode", "translate", "maketrans", "expandtabs":
		return func(*machine, parameters) any {
			return fail("is not supported in chat templates")
		}
	}
	return nil
}

// within is the part of a text that a method looks in, by its second and third argument, and how many
// characters come before that.
func within(s string, p parameters) (part string, before int, is bool) {
	if len(p.args) < 2 {
		return s, 0, true
	}
	start, end, is := p.bounds(1, utf8.RuneCountInString(s))
	if !is {
		return "", 0, false
	}
	return s[runeOffset(s, int64(start)):runeOffset(s, int64(end))], start, true
}

// strip takes characters off the ends of a text.
func (m *machine) strip(s, name string, p parameters) any {
	is := isSpace
	if set, ok := p.get(0, "chars"); ok && set != nil {
		chars := p.text(0, "chars", "")
		m.spendTimes(len(chars), valueCost)
		in := make(map[rune]bool)
		for _, r := range chars {
			in[r] = true
		}
		is = func(r rune) bool { return in[r] }
	}
	for name != "rstrip" && s != "" {
		r, width := utf8.DecodeRuneInString(s)
		if !is(r) {
			break
		}
		m.spend(elementCost)
		s = s[width:]
	}
	for name != "lstrip" && s != "" {
		r, width := utf8.DecodeLastRuneInString(s)
		if !is(r) {
			break
		}
		m.spend(elementCost)
		s = s[:len(s)-width]
	}
	return s
}

func (m *machine) affixed(s string, prefix bool, p parameters) any {
	v, _ := p.get(0, "prefix")
	options := []any{v}
	if l, ok := v.(*List); ok && l.tuple {
		options = l.Items
	}
	s, _, is := within(s, p)
	for _, o := range options {
		part, ok := o.(string)
		if !ok {
			return fail("a %s is not a string", typeName(o))
		}
		m.spend(elementCost + min(len(part), len(s)))
		if is && (prefix && strings.HasPrefix(s, part) || !prefix && strings.HasSuffix(s, part)) {
			return true
		}
	}
	return false
}

func (m *machine) justified(s, name string, p parameters) any {
	width, err := p.asNumber(0, "width", 0)
	if err != nil || width > maxRange {
		return failWith(errors.Join(err, errors.New("the width is too large")))
	}
	fill, err := p.asText(1, "fillchar", " ")
	if err != nil || len(fill) > utf8.UTFMax || utf8.RuneCountInString(fill) != 1 {
		return failWith(errors.Join(err, errors.New("the fill has to be one character")))
	}
	missing := int(width) - utf8.RuneCountInString(s)
	if missing <= 0 {
		return s
	}
	m.spend(2 * (missing*len(fill) + len(s)))
	switch name {
	case "ljust":
		return s + strings.Repeat(fill, missing)
	case "rjust":
		return strings.Repeat(fill, missing) + s
	case "center":
		left := missing/2 + missing&int(width)&1
		return strings.Repeat(fill, left) + s + strings.Repeat(fill, missing-left)
	}
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	return sign + strings.Repeat("0", missing) + s
}
