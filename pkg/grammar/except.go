package grammar

// escape is where in an escape the text of program.except is.
type escape uint8

const (
	noEscape escape = iota
	escapeBegun
	escapeDigits
)

// except makes the lexeme of any string of JSON but some, which are given as quoted writes
// them. While what was written begins one of them, a character has no other spelling than
// theirs; afterwards it is any string.
func (p *program) except(texts []string) (*lexeme, error) {
	names, err := p.oneOf(texts)
	if err != nil {
		return nil, err
	}
	type at struct {
		any, name *state
		escape    escape
	}
	out := &lexeme{exceptsSome: true}
	made := map[at]*state{}
	visit := func(a at) *state {
		s := made[a]
		if s == nil {
			s = p.state(out)
			s.a, s.b, s.escape = a.any, a.name, a.escape
			if len(made) >= maxLexemeStates {
				forget(&p.lexemes, out, made)
			}
			made[a] = s
		}
		return s
	}
	out.step = func(from *state, b byte) *state {
		to := from.a.next(b)
		if to == nil {
			return nil
		}
		var name *state
		if from.b != nil {
			name = from.b.next(b)
		}
		escape := noEscape
		switch {
		case from.escape == noEscape && b == '\\':
			escape = escapeBegun
		case from.escape == escapeBegun && b == 'u', from.escape == escapeDigits && to.within != to.of.text.units.first:
			escape = escapeDigits
		}
		switch {
		case name != nil && name.final:
			return nil // one of them
		case name != nil:
			return visit(at{to, name, escape})
		case from.escape == escapeDigits, from.escape == escapeBegun && (b == 'u' || b == '/'):
			return nil // another spelling of what may be one of them
		case escape == escapeBegun:
			return visit(at{to, nil, escape})
		}
		return to
	}
	out.leads = func(from *state) byteSet { return *from.a.leads() }
	out.first = visit(at{p.string().first, names.first, noEscape})
	return out, nil
}
