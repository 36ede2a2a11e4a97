package trace

import (
	"encoding/json"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/internal/jsonerror"
)

// shareGPT reads conversations in ShareGPT's format.
type shareGPT struct{ objects *objects }

func (s *shareGPT) Format() Format { return ShareGPT }

type role uint8

const (
	user role = iota + 1
	assistant
	system
)

// roles are the speakers' names in data sets of this format.
var roles = map[string]role{
	"human": user, "user": user,
	"gpt": assistant, "assistant": assistant, "chatgpt": assistant, "bing": assistant, "bard": assistant, "model": assistant,
	"system": system,
}

// Next returns the next conversation with at least one user message and answer. It omits
// messages before the first user message, and a last one without an answer, whose length
// is unknown.
func (s *shareGPT) Next() (Entry, error) {
	for {
		at, err := s.objects.next()
		if err != nil {
			return Entry{}, err
		}
		entry, err := s.parse(at)
		if err != nil || len(entry.Turns) > 0 {
			return entry, err
		}
	}
}

func (s *shareGPT) parse(at object) (Entry, error) {
	const form = `expected {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}`
	var raw struct {
		Conversations *[]struct {
			From  *string `json:"from"`
			Value *string `json:"value"`
		} `json:"conversations"`
	}
	if err := json.Unmarshal(at.text, &raw); err != nil {
		offset, problem := jsonerror.Explain(err)
		return Entry{}, s.objects.failIn(at, int(offset), "%s: %s", problem, form)
	}
	if raw.Conversations == nil {
		return Entry{}, s.objects.failIn(at, 1, "conversations is missing: %s", form)
	}
	var entry Entry
	var said []string // user messages since the last answer
	for i, message := range *raw.Conversations {
		if message.From == nil || message.Value == nil {
			return Entry{}, s.objects.failIn(at, 1, "conversations[%d] lacks from or value: %s", i, form)
		}
		switch roles[strings.ToLower(*message.From)] {
		case system:
			if len(entry.Turns) == 0 && len(said) == 0 {
				entry.System = *message.Value
			}
		case user:
			if *message.Value != "" {
				said = append(said, *message.Value)
			}
		case assistant:
			if len(said) > 0 {
				entry.Turns = append(entry.Turns, Turn{User: strings.Join(said, "\n\n"), Reply: *message.Value})
				said = said[:0]
			}
		default:
			return Entry{}, s.objects.failIn(at, 1, "conversations[%d] is from %s: expected human, gpt or system", i, quoted(*message.From))
		}
	}
	return entry, nil
}
