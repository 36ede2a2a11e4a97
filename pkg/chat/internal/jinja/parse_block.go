package jinja

func (p *parser) block(word string, line int) statement {
	switch word {
	case "if":
		return p.ifBlock(line)
	case "for":
		return p.forBlock(line)
	case "set":
		return p.setBlock(line)
	case "macro":
		m := &macroStatement{name: p.name(), line: line}
		p.parameters(m)
		m.body = p.function("endmacro")
		return m
	case "call":
		return p.callBlock(line)
	case "with":
		return p.withBlock(line)
	case "filter":
		f := p.filters(nil, true)
		p.end()
		return filterStatement{f, p.closing("endfilter"), line}
	case "generation":
		p.end()
		return scopeStatement{p.closing("endgeneration")}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside of a loop", word)
		}
		p.end()
		if word == "break" {
			return breakStatement{}
		}
		return continueStatement{}
	case "include", "import", "from", "extends":
		p.fail("%q is refused: a chat template may not read other files", word)
	case "block", "do", "autoescape", "trans", "debug":
		p.fail("the block %q is not supported in chat templates", word)
	default:
		p.fail("the block %q is not known", word)
	}
	return nil
}

func (p *parser) ifBlock(line int) statement {
	var out ifStatement
	for {
		test := p.tuple(false)
		p.end()
		body, ended := p.body("elif", "else", "endif")
		out.branches = append(out.branches, branch{test, body, line})
		line = p.now().line
		if ended == "elif" {
			continue
		}
		p.end()
		if ended == "else" {
			out.branches = append(out.branches, branch{nil, p.closing("endif"), line})
		}
		return out
	}
}

func (p *parser) forBlock(line int) statement {
	out := forStatement{line: line, target: p.target(false)}
	p.expect(kindName, "in")
	out.over = p.tuple(false)
	if p.skipIf(kindName, "if") {
		out.test = p.expression()
	}
	out.recursive = p.skipIf(kindName, "recursive")
	p.end()
	p.loops++
	body, ended := p.body("else", "endfor")
	p.loops--
	out.body = body
	p.end()
	if ended == "else" {
		out.otherwise = p.closing("endfor")
	}
	return out
}

func (p *parser) setBlock(line int) statement {
	out := setStatement{line: line, target: p.target(true)}
	if p.skipIf(kindOperator, "=") {
		out.value = p.tuple(true)
		p.end()
		return out
	}
	if p.is(kindOperator, "|") {
		out.filter = p.filters(nil, false)
	}
	p.end()
	out.body = p.closing("endset")
	return out
}

// function is the body of a macro, whose loops are its own.
func (p *parser) function(until string) []statement {
	p.end()
	outside := p.loops
	p.loops = 0
	body := p.closing(until)
	p.loops = outside
	return body
}

func (p *parser) parameters(m *macroStatement) {
	p.expect(kindOperator, "(")
	for p.err == nil && !p.skipIf(kindOperator, ")") {
		if len(m.names) > 0 {
			p.expect(kindOperator, ",")
		}
		parameter := p.name()
		var otherwise expression
		if p.skipIf(kindOperator, "=") {
			otherwise = p.expression()
		}
		m.names, m.defaults = append(m.names, parameter), append(m.defaults, otherwise)
	}
}

func (p *parser) callBlock(line int) statement {
	m := &macroStatement{name: "caller", line: line}
	if p.is(kindOperator, "(") {
		p.parameters(m)
	}
	c, ok := p.expression().(*call)
	if !ok {
		p.fail("a call block must contain a call")
	}
	m.body = p.function("endcall")
	return callStatement{c, m, line}
}

func (p *parser) withBlock(line int) statement {
	out := withStatement{line: line}
	for p.err == nil && p.now().kind != kindBlockEnd {
		if len(out.targets) > 0 {
			p.expect(kindOperator, ",")
		}
		to := p.target(false)
		p.expect(kindOperator, "=")
		out.targets, out.values = append(out.targets, to), append(out.values, p.expression())
	}
	p.end()
	out.body = p.closing("endwith")
	return out
}

// target takes what is assigned to; attributes: of a namespace may be.
func (p *parser) target(attributes bool) target {
	var several []target
	parenthesized := p.skipIf(kindOperator, "(")
	comma := false
	for {
		one := target{name: p.name()}
		if attributes && p.skipIf(kindOperator, ".") {
			one.attribute = p.name()
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
		p.expect(kindOperator, ")")
	}
	if !comma {
		return several[0]
	}
	return target{several: several}
}
