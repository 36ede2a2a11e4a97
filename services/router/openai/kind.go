package openai

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// kind is one kind of request: completions or chats.
type kind struct {
	parse func(*fields) (*call, error)
	known map[string]bool // names of members that parse looks for
}

func newKind(parse func(*fields) (*call, error)) *kind {
	f := &fields{members: map[string]json.RawMessage{}, verbatim: new(int), read: maps.Collect(maps.All(meaningless))}
	_, _ = parse(f) // of nothing, which is refused: only the names count
	return &kind{parse: parse, known: f.read}
}

// meaningless are members that OpenAI or vLLM know and that change nothing that is generated
// here, whatever they say.
var meaningless = map[string]bool{
	"audio": true, "metadata": true, "moderation": true, "prediction": true,
	"prompt_cache_key": true, "prompt_cache_options": true, "prompt_cache_retention": true, "reasoning_effort": true, "safety_identifier": true,
	"store": true, "user": true, "verbosity": true, "web_search_options": true, "spaces_between_special_tokens": true,
}

// maxIgnored is how many ignored members are named.
const maxIgnored = 16

// ignored are the members of a request that nobody looks for, sorted. OpenAI refuses those;
// vLLM ignores them, and so does this: programs send what other servers know, and what is
// new. But it is said, since a name may be misspelt.
func (k *kind) ignored(f *fields) (names []string) {
	for name := range f.members {
		if !k.known[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	more := len(names) > maxIgnored
	names = slices.Clip(names[:min(len(names), maxIgnored)])
	for i, name := range names {
		names[i] = nameable(name)
	}
	if more {
		names = append(names, "...")
	}
	return names
}

// nameable is a member's name as it may stand in a header and a log line.
func nameable(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == ',' || r == '"' {
			return '?'
		}
		return r
	}, shorten(name))
}
