package grammar

// space is what may stand behind a colon, a comma and an opening bracket, and before a closing
// one: nothing, a space, or a line break and what the next line is indented by. It is bounded, so
// that no output is space without an end.
const space = `(?: |\n[ \t]{0,16})?`

// number is a number of JSON with at most so many digits that every reader takes it.
const (
	integerText  = `-?` + anyInteger
	fractionText = `(?:\.[0-9]{1,40})?`
	exponentText = `(?:[eE][-+]?[0-9]{1,2})?`
)

// json is what all JSON of a program has in common.
type json struct {
	object, array, value int32 // rules; -1: not made
}

// parts of JSON that are made when they are first needed.
func (p *program) anyJSON() *json {
	if p.json == nil {
		p.json = &json{object: p.rule(), array: p.rule(), value: p.rule()}
		j := p.json
		p.rules[j.object] = p.list(end, "{", "}", func(next int32) int32 {
			return p.lexeme(p.string(), p.lexeme(p.expressionOf(":"+space), p.call(j.value, next)))
		})
		p.rules[j.array] = p.list(end, "[", "]", func(next int32) int32 { return p.call(j.value, next) })
		p.rules[j.value] = p.split(
			p.call(j.object, end), p.call(j.array, end), p.lexeme(p.string(), end),
			p.lexeme(p.expressionOf(integerText+fractionText+exponentText+"|true|false|null"), end))
	}
	return p.json
}

// expressionOf is the lexeme of an expression of this package, made once.
func (p *program) expressionOf(text string) *lexeme {
	l := p.made[text]
	if l == nil {
		l = p.known(text)
		if p.made == nil {
			p.made = make(map[string]*lexeme)
		}
		p.made[text] = l
	}
	return l
}

// string is any string of JSON.
func (p *program) string() *lexeme { return p.jsonString(0, unbounded) }

// list is any number of items between brackets.
func (p *program) list(next int32, open, shut string, item func(next int32) int32) int32 {
	closes := p.lexeme(p.expressionOf(space+`\`+shut), next)
	more := p.loop()
	p.nodes[more].ways = []int32{p.lexeme(p.expressionOf(","+space), item(more)), closes}
	return p.lexeme(p.expressionOf(`\`+open), p.split(p.lexeme(p.expressionOf(space), item(more)), closes))
}
