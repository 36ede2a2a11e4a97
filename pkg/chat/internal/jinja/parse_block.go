package jinja

func (p *parser) block(word string, line int) (statement, error) {
	switch word {
	case "if":
		return p.ifBlock(line)
	case "for":
		return p.forBlock(line)
	case "set":
		return p.setBlock(line)
	case "macro":
		return p.macroBlock(line)
	case "call":
		return p.callBlock(line)
	case "with":
		return p.withBlock(line)
	case "filter":
		f, err := p.filters(nil, true)
		if err != nil {
			return nil, err
		}
		if err := p.end(); err != nil {
			return nil, err
		}
		body, err := p.closing("endfilter")
		return filterStatement{f, body, line}, err
	case "generation":
		if err := p.end(); err != nil {
			return nil, err
		}
		body, err := p.closing("endgeneration")
		return scopeStatement{body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s outside of a loop", word)
		}
		if word == "break" {
			return breakStatement{}, p.end()
		}
		return continueStatement{}, p.end()
	case "include", "import", "from", "extends":
		return nil, p.fail("%q is refused: a chat template may not read other files", word)
	case "block", "do", "autoescape", "trans", "debug":
		return nil, p.fail("the block %q is not supported in chat templates", word)
	}
	return nil, p.fail("the block %q is not known", word)
}

func (p *parser) ifBlock(line int) (statement, error) {
	var out ifStatement
	test, err := p.tuple(false)
	for {
		if err != nil {
			return nil, err
		}
		if err := p.end(); err != nil {
			return nil, err
		}
		body, ended, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		out.branches = append(out.branches, branch{test, body, line})
		line = p.now().line
		switch ended {
		case "elif":
			if test, err = p.tuple(false); err != nil {
				return nil, err
			}
			continue
		case "else":
			if err := p.end(); err != nil {
				return nil, err
			}
			body, err := p.closing("endif")
			out.branches = append(out.branches, branch{nil, body, line})
			return out, err
		}
		return out, p.end()
	}
}

func (p *parser) forBlock(line int) (statement, error) {
	out := forStatement{line: line}
	var err error
	if out.target, err = p.target(false); err != nil {
		return nil, err
	}
	if err := p.expect(kindName, "in"); err != nil {
		return nil, err
	}
	if out.over, err = p.tuple(false); err != nil {
		return nil, err
	}
	if p.skipIf(kindName, "if") {
		if out.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	out.recursive = p.skipIf(kindName, "recursive")
	if err := p.end(); err != nil {
		return nil, err
	}
	p.loops++
	body, ended, err := p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	out.body = body
	if err := p.end(); err != nil {
		return nil, err
	}
	if ended == "else" {
		out.otherwise, err = p.closing("endfor")
	}
	return out, err
}

func (p *parser) setBlock(line int) (statement, error) {
	out := setStatement{line: line}
	var err error
	if out.target, err = p.target(true); err != nil {
		return nil, err
	}
	if p.skipIf(kindOperator, "=") {
		if out.value, err = p.tuple(true); err != nil {
			return nil, err
		}
		return out, p.end()
	}
	if p.is(kindOperator, "|") {
		if out.filter, err = p.filters(nil, false); err != nil {
			return nil, err
		}
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	out.body, err = p.closing("endset")
	return out, err
}

func (p *parser) macroBlock(line int) (statement, error) {
	called, err := p.name()
	if err != nil {
		return nil, err
	}
	m := &macroStatement{name: called, line: line}
	if err := p.parameters(m); err != nil {
		return nil, err
	}
	m.body, err = p.function("endmacro")
	return m, err
}

// function is the body of a macro, whose loops are its own.
func (p *parser) function(until string) ([]statement, error) {
	if err := p.end(); err != nil {
		return nil, err
	}
	outside := p.loops
	p.loops = 0
	body, err := p.closing(until)
	p.loops = outside
	return body, err
}

func (p *parser) parameters(m *macroStatement) error {
	if err := p.expect(kindOperator, "("); err != nil {
		return err
	}
	for !p.skipIf(kindOperator, ")") {
		if len(m.names) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return err
			}
		}
		parameter, err := p.name()
		if err != nil {
			return err
		}
		var otherwise expression
		if p.skipIf(kindOperator, "=") {
			if otherwise, err = p.expression(); err != nil {
				return err
			}
		}
		m.names, m.defaults = append(m.names, parameter), append(m.defaults, otherwise)
	}
	return nil
}

func (p *parser) callBlock(line int) (statement, error) {
	m := &macroStatement{name: "caller", line: line}
	if p.is(kindOperator, "(") {
		if err := p.parameters(m); err != nil {
			return nil, err
		}
	}
	e, err := p.expression()
	if err != nil {
		return nil, err
	}
	c, ok := e.(*call)
	if !ok {
		return nil, p.fail("a call block has to call something")
	}
	m.body, err = p.function("endcall")
	return callStatement{c, m, line}, err
}

func (p *parser) withBlock(line int) (statement, error) {
	out := withStatement{line: line}
	for p.now().kind != kindBlockEnd {
		if len(out.targets) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return nil, err
			}
		}
		to, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.expect(kindOperator, "="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		out.targets, out.values = append(out.targets, to), append(out.values, value)
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	body, err := p.closing("endwith")
	out.body = body
	return out, err
}

// target takes what is assigned to; attributes: of a namespace may be.
func (p *parser) target(attributes bool) (target, error) {
	var several []target
	parenthesized := p.skipIf(kindOperator, "(")
	comma := false
	for {
		word, err := p.name()
		if err != nil {
			return target{}, err
		}
		one := target{name: word}
		if attributes && p.skipIf(kindOperator, ".") {
			if one.attribute, err = p.name(); err != nil {
				return target{}, err
			}
		}
		several = append(several, one)
		if !p.skipIf(kindOperator, ",") {
			break
		}
		comma = true
		if p.now().kind != kindName {
			break
		}
	}
	if parenthesized {
		if err := p.expect(kindOperator, ")"); err != nil {
			return target{}, err
		}
	}
	if !comma {
		return several[0], nil
	}
	return target{several: several}, nil
}
