package openai

import (
	"regexp"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// maxIgnored is how many ignored members are named.
const maxIgnored = 16

// ignored are the names of members that have no effect, sorted: the first of them, and one more if
// there are more than maxIgnored. OpenAI refuses such members; vLLM ignores them, and so does this:
// programs send what other servers know, and what is new. But it is said, since a name may be misspelt.
type ignored []string

func (n *ignored) add(name string) {
	name = nameable(name)
	at, is := slices.BinarySearch(*n, name)
	if is {
		return
	}
	*n = slices.Insert(*n, at, name)
	*n = (*n)[:min(len(*n), maxIgnored+1)]
}

// String is the names for a header.
func (n ignored) String() string {
	if len(n) > maxIgnored {
		return strings.Join(n[:maxIgnored], ", ") + ", ..."
	}
	return strings.Join(n, ", ")
}

// elementIndex says in which element of an array something stands.
var elementIndex = regexp.MustCompile(`\[[0-9]+\]`)

// ignoreOthers names the members of an object within the request that nobody has looked for, unless
// they ask for nothing: messages that answers have are sent back with all of their members.
func (f *fields) ignoreOthers() {
	if f.bad != nil {
		return
	}
	for name, raw := range f.members {
		if !f.read[name] && string(raw) != "null" && !slices.Contains(offValues, string(raw)) {
			f.ignored.add(elementIndex.ReplaceAllString(f.at, "[]") + name)
		}
	}
}

// nameable is a member's name as it may stand in a header and a log line.
func nameable(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == ',' || r == '"' {
			return '?'
		}
		return r
	}, clienterr.Shorten(name))
}
