package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
)

// Conversation is what a template renders. Values are those of encoding/json.
type Conversation struct {
	// Messages, oldest first.
	Messages []Message
	// Tools are functions that the model may call, as OpenAI's API gives them. The members of a
	// json.RawMessage come in its order.
	Tools []any
	// Arguments are further variables of the template, such as enable_thinking.
	Arguments map[string]any
	// ContinueLast ends the prompt inside the last message instead of where an
	// answer begins.
	ContinueLast bool
}

// Message is one message. Fields that are empty do not exist for the template,
// except Role and Content.
type Message struct {
	Role, Content, Name string
	// Reasoning is what an assistant thought before the content: reasoning_content.
	Reasoning string
	// NoContent makes the content none in place of an empty text, for templates that know of calls.
	// Content is empty then.
	NoContent bool
	// ToolCalls that an assistant made. Arguments that are text are read as JSON,
	// which is what templates expect and OpenAI's API does not give: their members come in its order.
	ToolCalls  []any
	ToolCallID string
}

func (m Message) value() (any, error) {
	d := jinja.NewDict()
	d.Set("role", m.Role)
	d.Set("content", m.Content)
	if m.NoContent {
		d.Set("content", nil)
	}
	if m.Reasoning != "" {
		d.Set("reasoning_content", m.Reasoning)
	}
	if m.Name != "" {
		d.Set("name", m.Name)
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]any, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			v, err := valueOf(withArguments(c), 0)
			if err != nil {
				return nil, fmt.Errorf("tool_calls[%d]: %w", i, err)
			}
			calls[i] = v
		}
		d.Set("tool_calls", &jinja.List{Items: calls})
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", m.ToolCallID)
	}
	return d, nil
}

// withArguments is a tool call whose arguments are an object, with its members in the text's order.
func withArguments(call any) any {
	c, ok := call.(map[string]any)
	if !ok {
		return call
	}
	f, ok := c["function"].(map[string]any)
	if !ok {
		return call
	}
	text, ok := f["arguments"].(string)
	if !ok {
		return call
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil || object == nil {
		return call
	}
	changed, inner := maps.Clone(c), maps.Clone(f)
	inner["arguments"], changed["function"] = json.RawMessage(text), inner
	return changed
}

// maxValueNesting bounds objects in objects.
const maxValueNesting = 100

// maxIntegerBytes bounds whole numbers, as Python does.
const maxIntegerBytes = 4300

// keyRank is where keys come that descriptions of functions have; others follow,
// sorted. Objects that are no json.RawMessage arrive without an order, and templates print them:
// this is the order that transformers and OpenAI's own examples write them in.
var keyRank = []string{"id", "type", "function", "name", "enum", "description", "parameters", "arguments", "properties", "required"}

// valueOf makes a template's value of a JSON value. Whole numbers are integers,
// as JSON's are in Python.
func valueOf(v any, depth int) (any, error) {
	if depth > maxValueNesting {
		return nil, fmt.Errorf("is nested more than %d deep", maxValueNesting)
	}
	switch x := v.(type) {
	case nil, bool, string, int64:
		return v, nil
	case int:
		return int64(x), nil
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return int64(x), nil
		}
		return x, nil
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n, nil
		}
		if !strings.ContainsAny(string(x), ".eE") {
			if len(x) > maxIntegerBytes {
				return nil, fmt.Errorf("%.20s… has more than %d digits: pass it as text", x, maxIntegerBytes)
			}
			return jinja.BigInt(x), nil
		}
		f, err := x.Float64()
		if err != nil {
			if len(x) > 20 {
				x = x[:20] + "…"
			}
			return nil, fmt.Errorf("%s is too large for a number", x)
		}
		return f, nil
	case json.RawMessage:
		d := json.NewDecoder(bytes.NewReader(x))
		d.UseNumber()
		return orderedValue(d, depth)
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			var err error
			if out[i], err = valueOf(e, depth+1); err != nil {
				return nil, err
			}
		}
		return &jinja.List{Items: out}, nil
	case map[string]any:
		out := jinja.NewDict()
		for _, key := range orderedKeys(x) {
			e, err := valueOf(x[key], depth+1)
			if err != nil {
				return nil, err
			}
			out.Set(key, e)
		}
		return out, nil
	}
	return nil, fmt.Errorf("is a %T, which is not JSON", v)
}

// orderedValue reads JSON with the members of objects in their order.
func orderedValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, fmt.Errorf("is not valid JSON: %w", err)
	}
	open, is := token.(json.Delim)
	if !is {
		return valueOf(token, depth)
	}
	if depth > maxValueNesting {
		return nil, fmt.Errorf("is nested more than %d deep", maxValueNesting)
	}
	list, object := &jinja.List{}, jinja.NewDict()
	for d.More() {
		var name string
		if open == '{' {
			token, err := d.Token()
			if err != nil {
				return nil, fmt.Errorf("is not valid JSON: %w", err)
			}
			name, _ = token.(string)
		}
		element, err := orderedValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		if open == '{' {
			object.Set(name, element)
		} else {
			list.Items = append(list.Items, element)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("is not valid JSON: %w", err)
	}
	if open == '{' {
		return object, nil
	}
	return list, nil
}

func orderedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		i, j := slices.Index(keyRank, a), slices.Index(keyRank, b)
		switch {
		case i >= 0 && j >= 0:
			return i - j
		case i >= 0:
			return -1
		case j >= 0:
			return 1
		}
		return strings.Compare(a, b)
	})
	return keys
}
