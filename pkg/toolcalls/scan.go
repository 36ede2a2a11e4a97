package toolcalls

import "encoding/json"

// scan follows one JSON object byte by byte, as RFC 8259 has it.
type scan struct {
	open  []byte // the brackets that are open
	at    scanState
	token []byte // of a number, true, false or null; the digits of \u
	key   bool   // the string is a name
}

type scanState uint8

const (
	atStart    scanState = iota // before the object
	atName                      // a name has to come
	atFirst                     // a name, or the end of the object
	atColon                     // behind a name
	atValue                     // a value has to come
	atItem                      // a value, or the end of the array
	inString                    // within a string
	inEscape                    // behind its backslash
	inHex                       // behind its \u
	inToken                     // within a number, true, false or null
	afterValue                  // a comma, or an end
	atEnd                       // behind the object
)

// maxScanDepth bounds brackets in one another, maxScanToken a number.
const (
	maxScanDepth = 128
	maxScanToken = 256
)

// step takes in one byte, and says whether what came so far can be of an object.
func (s *scan) step(b byte) bool {
	switch s.at {
	case inString:
		switch {
		case b == '\\':
			s.at = inEscape
		case b == '"' && s.key:
			s.at = atColon
		case b == '"':
			s.at = afterValue
		case b < 0x20:
			return false
		}
		return true
	case inEscape:
		switch b {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.at = inString
		case 'u':
			s.at, s.token = inHex, s.token[:0]
		default:
			return false
		}
		return true
	case inHex:
		s.token = append(s.token, b)
		if len(s.token) == 4 {
			s.at = inString
		}
		return b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
	case inToken:
		if isSpace(b) || b == ',' || b == '}' || b == ']' {
			if !json.Valid(s.token) {
				return false
			}
			s.at = afterValue
			break
		}
		s.token = append(s.token, b)
		return len(s.token) <= maxScanToken
	}
	if isSpace(b) && s.at != atStart && s.at != atEnd {
		return true
	}
	return s.structure(b)
}

// structure takes in a byte that is within no string or number, and no space.
func (s *scan) structure(b byte) bool {
	switch {
	case s.at == atStart:
		return b == '{' && s.push(b)
	case b == '"' && (s.at == atName || s.at == atFirst):
		s.at, s.key = inString, true
		return true
	case b == ':' && s.at == atColon:
		s.at = atValue
		return true
	case b == '}' && (s.at == atFirst || s.at == afterValue && s.inObject()):
		return s.pop()
	case b == ']' && (s.at == atItem || s.at == afterValue && !s.inObject()):
		return s.pop()
	case b == ',' && s.at == afterValue:
		s.at = atValue
		if s.inObject() {
			s.at = atName
		}
		return true
	case s.at != atValue && s.at != atItem:
		return false
	}
	switch {
	case b == '{' || b == '[':
		return s.push(b)
	case b == '"':
		s.at, s.key = inString, false
	case b == '-' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z':
		s.at, s.token = inToken, append(s.token[:0], b)
	default:
		return false
	}
	return true
}

func (s *scan) push(b byte) bool {
	s.open = append(s.open, b)
	s.at = atFirst
	if b == '[' {
		s.at = atItem
	}
	return len(s.open) <= maxScanDepth
}

func (s *scan) pop() bool {
	s.open = s.open[:len(s.open)-1]
	s.at = afterValue
	if len(s.open) == 0 {
		s.at = atEnd
	}
	return true
}

func (s *scan) inObject() bool { return s.open[len(s.open)-1] == '{' }

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }
