package openai

import (
	"encoding/json"
	"maps"
)

// kind is one kind of request: completions, chats, responses or embeddings.
type kind struct {
	parse func(*fields) (*parsedRequest, error)
	known map[string]bool // names of members that parse looks for
}

func newKind(parse func(*fields) (*parsedRequest, error)) *kind {
	f := &fields{reading: new(reading), members: map[string]json.RawMessage{}, read: maps.Clone(meaningless)}
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

// ignore names the members of a request that nobody looks for. Null is as if it were left out.
func (k *kind) ignore(f *fields) {
	for name, raw := range f.members {
		if !k.known[name] && string(raw) != "null" {
			f.ignored.add(name)
		}
	}
}
