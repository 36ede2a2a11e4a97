package toolcalls

import (
	"bytes"
	"strings"
)

// Kind is what an Event is of.
type Kind uint8

// Kinds of events.
const (
	// Text is content, which belongs to no call.
	Text Kind = iota
	// Begin is a call, with the name of its function.
	Begin
	// Arguments is a piece of the JSON of the call that began last.
	Arguments
	// End is after the last piece of its arguments.
	End
)

// Event is what text in some format says.
type Event struct {
	Kind Kind
	// Call numbers the calls of an answer, from 0.
	Call int
	Text string
}

// Parser finds the calls in an answer as it comes. Whatever turns out to be no call of a known
// function is Text. Put together, the arguments of a call are valid JSON, unless its answer ends
// or goes wrong within them.
type Parser struct {
	format     Format
	known      map[string]bool // functions that can be called
	whole      bool            // a call begins when its arguments are complete
	callsFirst bool            // a call comes first, or none does
	single     bool            // what is behind the first call is content
	state      state
	text       []byte // from what may be the beginning of a call on
	at         int    // how much of that was looked at
	marker     int    // how much of that is content if it is none
	space      []byte // at the end of the content so far: it is none before a call
	object     *object
	args       *scan
	from       int // where they begin in text, or what is not said of them
	name       string
	calls      int
	open       bool // a call has begun and not ended
	cut        bool // nor will it
	list       bool // of calls
	events     []Event
}

// state is where in an answer a Parser is.
type state uint8

const (
	inText       state = iota // anywhere
	atTheStart                // where Llama's answers begin
	inPlainText               // where no call can come any more
	beforeObject              // before {
	inCall                    // within {"name": …}
	afterCall                 // behind it
	afterMarker               // behind [TOOL_CALLS]
	inName                    // of a function
	beforeArgs                // behind it
	inArgs                    // within the arguments alone
)

// NewParser reads calls of functions in a format. whole has a call begin only when its arguments are
// complete, so that those that are no JSON are content; else it begins as soon as they do.
func (f Format) NewParser(functions []string, whole bool) *Parser {
	p := &Parser{format: f, whole: whole, single: f.Name == Llama3, known: make(map[string]bool, len(functions))}
	for _, name := range functions {
		p.known[name] = true
	}
	if f.Name == Llama3 {
		p.state = atTheStart
	}
	return p
}

// CallsFirst has calls read at the beginning of the answer alone: one that begins otherwise, with
// anything but space, is content, whatever is in it.
func (p *Parser) CallsFirst() { p.callsFirst = true }

// Single has one call read at most: what is behind it is content, whatever is in it.
func (p *Parser) Single() { p.single = true }

// Calls is how many calls have begun.
func (p *Parser) Calls() int { return p.calls }

// Cut says whether the answer ended within the arguments of a call.
func (p *Parser) Cut() bool { return p.cut }

// Add takes in more of the answer.
func (p *Parser) Add(text string) []Event {
	p.events = nil
	p.text = append(p.text, text...)
	for p.advance() {
	}
	return p.events
}

// Finish is for the end of the answer.
func (p *Parser) Finish() []Event {
	p.events = nil
	if p.whole { // what there is of a call
		p.whole = false
		switch p.state {
		case inCall:
			p.pieces()
		case inArgs:
			p.begin(p.name)
			p.argument(string(p.text[p.from:]))
		}
	}
	switch {
	case p.open:
		p.cut = true
		p.end()
	case p.state == afterCall, p.state == inCall && p.object.complete && p.object.named:
		// its own end is missing
	case p.list && p.marker == 0 && (p.state == beforeObject || p.state == inCall):
		// the next call of a list is missing, or its name
	default:
		p.say(p.text)
	}
	if p.calls == 0 {
		p.sayNow(nil)
	}
	p.text, p.space, p.state = nil, nil, inPlainText
	return p.events
}

// advance goes on as far as one state goes, and says whether another can go on.
func (p *Parser) advance() bool {
	switch p.state {
	case inText:
		if p.single && p.calls > 0 {
			p.state = inPlainText
			return true
		}
		return p.look()
	case inPlainText:
		p.say(p.text)
		p.text = p.text[:0]
		return false
	case inCall:
		return p.readCall()
	case inArgs:
		return p.readArgs()
	case inName:
		return p.readName()
	}
	for p.at < len(p.text) && isSpace(p.text[p.at]) {
		p.at++
	}
	rest := p.text[p.at:]
	if len(rest) == 0 {
		return false
	}
	switch p.state {
	case atTheStart:
		if begins(llamaTag, rest) {
			return false
		}
		if bytes.HasPrefix(rest, []byte(llamaTag)) {
			p.at += len(llamaTag)
		}
		p.state = beforeObject
	case beforeObject:
		if rest[0] != '{' {
			return p.fail()
		}
		p.object, p.state = new(object), inCall
	case afterMarker:
		switch rest[0] {
		case '[':
			p.list, p.state = true, beforeObject
			p.at++
		case '{':
			p.list, p.state = false, beforeObject
		default:
			p.state = inName
		}
	case beforeArgs:
		if begins(mistralArguments, rest) {
			return false
		}
		if bytes.HasPrefix(rest, []byte(mistralArguments)) {
			p.at += len(mistralArguments)
			return true
		}
		if rest[0] != '{' {
			return p.fail()
		}
		p.args, p.from, p.state = new(scan), p.at, inArgs
		if !p.whole {
			p.begin(p.name)
			p.passed()
			p.from = 0
		}
	case afterCall:
		return p.after(rest)
	}
	return true
}

// look looks for the beginning of a call in content.
func (p *Parser) look() bool {
	marker := hermesOpen
	if p.format.Name == Mistral {
		marker = mistralCalls
	}
	if p.callsFirst {
		switch rest := bytes.TrimLeft(p.text, spaces); {
		case bytes.HasPrefix(rest, []byte(marker)):
		case begins(marker, rest):
			return false
		default:
			p.state = inPlainText
			return true
		}
	}
	before, _, found := bytes.Cut(p.text, []byte(marker))
	if !found {
		n := held(p.text, marker)
		p.say(p.text[:len(p.text)-n])
		p.text = p.text[len(p.text)-n:]
		return false
	}
	p.say(before)
	p.text = p.text[len(before):]
	p.at, p.marker, p.state = len(marker), len(marker), beforeObject
	if p.format.Name == Mistral {
		p.state = afterMarker
	}
	return true
}

// begins says whether a marker begins with a text.
func begins(marker string, text []byte) bool {
	return len(text) <= len(marker) && marker[:len(text)] == string(text)
}

// held is how much of a text's end may be the beginning of a marker.
func held(text []byte, marker string) int {
	for n := min(len(text), len(marker)-1); n > 0; n-- {
		if string(text[len(text)-n:]) == marker[:n] {
			return n
		}
	}
	return 0
}

// readCall reads {"name": …, "arguments": {…}}.
func (p *Parser) readCall() bool {
	o := p.object
	for p.at < len(p.text) && !o.done() {
		if !o.step(p.text[p.at]) || o.named && !p.functionIs(o.name) {
			if p.open {
				p.pieces()
			}
			return p.fail()
		}
		p.at++
		if !p.open || o.complete {
			p.pieces() // as soon as it begins, and to its end
		}
	}
	p.pieces()
	if !o.done() {
		return false
	}
	switch {
	case !o.named:
		return p.fail()
	case !o.begun:
		p.begin(o.name)
		p.argument("{}")
		p.end()
	}
	p.passed()
	p.state = afterCall
	return true
}

// pieces says what the object has of the arguments, if it has the name.
func (p *Parser) pieces() {
	o := p.object
	if !o.named || len(o.arguments) == 0 || p.whole && !o.complete {
		return
	}
	if !p.open {
		p.begin(o.name)
	}
	p.argument(string(o.arguments))
	o.arguments = o.arguments[:0]
	if o.complete {
		p.end()
	}
	p.passed()
}

// readArgs reads {…}.
func (p *Parser) readArgs() bool {
	valid := true
	for ; valid && p.at < len(p.text) && p.args.at != atEnd; p.at++ {
		valid = p.args.step(p.text[p.at])
	}
	if !valid {
		p.at--
	}
	done := p.args.at == atEnd
	if p.whole && done {
		p.begin(p.name)
	}
	if p.open {
		p.argument(string(p.text[p.from:p.at]))
		p.passed()
		p.from = 0
	}
	switch {
	case !valid:
		return p.fail()
	case done:
		p.end()
		p.state = inText
	}
	return done
}

// readName reads the name of a function, up to what follows it.
func (p *Parser) readName() bool {
	rest := p.text[p.at:]
	n := bytes.IndexAny(rest, "[{")
	switch {
	case n < 0 && len(rest) <= maxMemberBytes:
		return false
	case n < 0:
		return p.fail()
	}
	p.name = strings.TrimSpace(string(rest[:n]))
	if !p.functionIs(p.name) {
		return p.fail()
	}
	behind := rest[n:]
	if begins(mistralID, behind) {
		return false
	}
	if id, is := bytes.CutPrefix(behind, []byte(mistralID)); is {
		m := bytes.IndexAny(id, "[{")
		if m < 0 {
			return len(id) > maxMemberBytes && p.fail()
		}
		n += len(mistralID) + m
	}
	p.at += n
	p.state = beforeArgs
	return true
}

// after goes on behind {"name": …}, with rest that is not empty.
func (p *Parser) after(rest []byte) bool {
	switch {
	case p.format.Name == Hermes:
		if begins(hermesClose, rest) && len(rest) < len(hermesClose) {
			return false
		}
		if bytes.HasPrefix(rest, []byte(hermesClose)) {
			p.at += len(hermesClose)
			p.passed()
		}
		p.state, p.at = inText, 0
	case p.list && rest[0] == ',' && !p.single:
		p.at++
		p.passed()
		p.state = beforeObject
	case p.list && rest[0] == ']':
		p.at++
		p.passed()
		p.state = inText
	default:
		p.state, p.at = inText, 0
	}
	return true
}

// fail is where text turns out to be no call, or not the rest of one.
func (p *Parser) fail() bool {
	if p.open {
		p.end()
		p.passed()
		p.marker = 0
	}
	if p.format.Name == Llama3 {
		p.state = inPlainText
	} else {
		p.say(p.text[:p.marker])
		p.text, p.state = p.text[p.marker:], inText
	}
	p.at, p.marker = 0, 0
	return true
}

// passed: what was looked at is said, or nothing to say.
func (p *Parser) passed() { p.text, p.at, p.marker = p.text[p.at:], 0, 0 }

func (p *Parser) functionIs(name string) bool { return name != "" && p.known[name] }

func (p *Parser) begin(name string) {
	p.space, p.open = p.space[:0], true
	p.events = append(p.events, Event{Begin, p.calls, name})
	p.calls++
}

func (p *Parser) argument(piece string) {
	if piece != "" {
		p.events = append(p.events, Event{Arguments, p.calls - 1, piece})
	}
}

func (p *Parser) end() {
	p.open = false
	p.events = append(p.events, Event{End, p.calls - 1, ""})
}

const spaces = " \t\r\n"

// say says content, but for the space at its end.
func (p *Parser) say(content []byte) {
	trimmed := bytes.TrimRight(content, spaces)
	if len(trimmed) > 0 {
		p.sayNow(trimmed)
	}
	p.space = append(p.space, content[len(trimmed):]...)
}

// sayNow says content, behind the space that was held back.
func (p *Parser) sayNow(content []byte) {
	text := string(p.space) + string(content)
	p.space = p.space[:0]
	if text == "" {
		return
	}
	if n := len(p.events); n > 0 && p.events[n-1].Kind == Text {
		p.events[n-1].Text += text
		return
	}
	p.events = append(p.events, Event{Kind: Text, Text: text})
}
