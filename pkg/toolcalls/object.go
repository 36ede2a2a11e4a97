package toolcalls

import "encoding/json"

// object follows {"name": …, "arguments": {…}}, in any order and with other members.
type object struct {
	scan   scan
	member []byte   // the name of a member of its own, and its value if that is wanted
	next   memberOf // whose value has to come
	in     memberOf // within the value
	name   string
	named  bool
	// arguments that nobody has taken yet.
	arguments []byte
	begun     bool // the arguments have
	complete  bool // so far as they go
}

// memberOf is what the value of a member is.
type memberOf uint8

const (
	otherMember memberOf = iota
	nameMember
	argumentsMember
)

// maxMemberBytes bounds a name, and the name of a member.
const maxMemberBytes = 1 << 10

// step takes in one byte, and says whether what came so far can be a call.
func (o *object) step(b byte) bool {
	before, top := o.scan.at, len(o.scan.open) == 1
	if !o.scan.step(b) {
		return false
	}
	now := o.scan.at
	switch {
	case top && (before == atName || before == atFirst) && now == inString:
		o.member = append(o.member[:0], b)
	case top && o.scan.key && (before == inString || before == inEscape || before == inHex):
		if o.member = append(o.member, b); now == atColon {
			return o.begin()
		}
		return len(o.member) <= maxMemberBytes
	case top && before == atValue && !isSpace(b):
		return o.value(b)
	case o.in == nameMember:
		if o.member = append(o.member, b); now == afterValue {
			o.in, o.named = otherMember, true
			return json.Unmarshal(o.member, &o.name) == nil
		}
		return len(o.member) <= maxMemberBytes
	case o.in == argumentsMember:
		o.arguments = append(o.arguments, b)
		if len(o.scan.open) == 1 {
			o.in, o.complete = otherMember, true
		}
	}
	return true
}

// begin is after the name of a member.
func (o *object) begin() bool {
	var name string
	if json.Unmarshal(o.member, &name) != nil {
		return false
	}
	o.next = otherMember
	switch name {
	case "name":
		o.next = nameMember
		return !o.named
	case "arguments", "parameters":
		o.next = argumentsMember
		return !o.begun
	}
	return true
}

// value is at the first byte of a member's value.
func (o *object) value(b byte) bool {
	o.in = o.next
	switch o.in {
	case nameMember:
		o.member = append(o.member[:0], b)
		return b == '"'
	case argumentsMember:
		o.begun, o.arguments = true, append(o.arguments, b)
		return b == '{'
	}
	return true
}

// done: the object has ended.
func (o *object) done() bool { return o.scan.at == atEnd }
