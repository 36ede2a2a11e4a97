package grammar_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// special tokens of tagged vocabularies, by their names, behind all others.
var special = []string{"[CALLS]", "<think>", "[ARGS]"}

// taggedTexts are the tokens of texts, tokens that have pieces of triggers, and the special ones,
// which have none.
func taggedTexts() [][]byte {
	out := texts()
	for _, text := range []string{
		"<call>", "<cal", "l>", "l>\n{", "<<", "call>\n{\"n", "x<call>\n{\"name\": \"f", "x<call>y", "<call>\n{\"name\": \"h", "><", "\n</call>", "}\n</call>", "}}\n</call>\n",
		`{"name": "`, `{"name": "f", "`, `{"name": "king`, `"}]`, `[{"name": "`, `ff"`, `"arguments": `,
	} {
		out = append(out, []byte(text))
	}
	for range special {
		out = append(out, nil)
	}
	return out
}

// firstSpecial is the id of the first special token.
func firstSpecial(texts [][]byte) int32 { return int32(len(texts) - len(special)) }

func taggedVocabulary(t testing.TB, texts [][]byte) *grammar.Vocabulary {
	t.Helper()
	v := vocabulary(t, texts)
	for i, name := range special {
		v.NameSpecial(firstSpecial(texts)+int32(i), name)
	}
	return v
}

const point = `{"type":"object","properties":{"x":{"type":"integer","minimum":0,"maximum":99},"to":{"enum":["a","b"]}},"required":["x"],"additionalProperties":false}`

// forms of calls of two functions, f and g, that differ in their arguments.
var tagged = map[string]*inferencev1.StructuralTags{
	"marked": {
		Triggers: []string{"<call>"}, Separator: "\n", Repeats: true,
		Tags: []*inferencev1.StructuralTag{
			{Begin: "<call>\n{\"name\": \"f\", \"arguments\": ", JsonSchema: point, End: "}\n</call>"},
			{Begin: "<call>\n{\"name\": \"ff\", \"arguments\": ", JsonSchema: `{"type":"object"}`, End: "}\n</call>"},
		},
	},
	"marked alone": {
		Separator: "\n",
		Tags:      []*inferencev1.StructuralTag{{Begin: "<call>\n{\"name\": \"f\", \"arguments\": ", JsonSchema: point, End: "}\n</call>"}},
	},
	"at the start": {
		Triggers: []string{`{"name": "f"`, `{"name": "ff"`, "[CALLS]"}, AtStart: true, Single: true, SpecialTokens: []string{"[CALLS]"},
		Tags: []*inferencev1.StructuralTag{
			{Begin: `{"name": "f", "parameters": `, JsonSchema: point, End: "}"}, {Begin: `{"name": "ff", "parameters": `, JsonSchema: `{"type":"object"}`, End: "}"},
			{Begin: `[CALLS]{"name": "f", "parameters": `, JsonSchema: point, End: "}"},
		},
	},
	"a list": {
		Triggers: []string{"[CALLS]"}, Open: "[CALLS][", Separator: ", ", Close: "]", SpecialTokens: []string{"[CALLS]"},
		Tags: []*inferencev1.StructuralTag{
			{Begin: `{"name": "f", "arguments": `, JsonSchema: point, End: "}"}, {Begin: `{"name": "ff", "arguments": `, JsonSchema: `{"type":"object"}`, End: "}"},
		},
	},
	"named": {
		Triggers: []string{"[CALLS]"}, SpecialTokens: []string{"[CALLS]", "[ARGS]"},
		Tags: []*inferencev1.StructuralTag{{Begin: "[CALLS]f[ARGS]", JsonSchema: point}, {Begin: "[CALLS]ff[ARGS]", JsonSchema: `{"type":"object"}`}},
	},
}

func structuralTags(form *inferencev1.StructuralTags) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: form}}
}

// reading follows an output of the forms in tagged by other means: strings and encoding/json.
// hidden is what the text shows of special tokens that the form does not have: nothing.
type reading struct {
	form *inferencev1.StructuralTags
	f    *jsonschema.Schema
}

// calls checks a complete output, and counts its calls.
func (r reading) calls(text string) (int, error) {
	n, form := 0, r.form
	for rest, first := text, true; ; first = false {
		trigger := -1
		for i, t := range form.GetTriggers() {
			at := strings.Index(rest, t)
			if at >= 0 && (trigger < 0 || at < strings.Index(rest, form.GetTriggers()[trigger])) && (!form.GetAtStart() || at == 0 && first) {
				trigger = i
			}
		}
		if len(form.GetTriggers()) > 0 {
			if trigger < 0 {
				return n, nil // free text
			}
			before, _, _ := strings.Cut(rest, form.GetTriggers()[trigger])
			rest = rest[len(before):]
		}
		before := form.GetOpen()
		for {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, before); !ok {
				return n, fmt.Errorf("%q does not begin with %q", rest, before)
			}
			var err error
			if rest, err = r.call(rest); err != nil {
				return n, err
			}
			n++
			before = form.GetSeparator()
			more := slices.ContainsFunc(form.GetTags(), func(t *inferencev1.StructuralTag) bool { return strings.HasPrefix(rest, before+t.GetBegin()) })
			if form.GetSingle() || !more {
				break
			}
		}
		var ok bool
		if rest, ok = strings.CutPrefix(rest, form.GetClose()); !ok || rest != "" && !form.GetRepeats() {
			return n, fmt.Errorf("%q follows", rest)
		}
		if rest == "" {
			return n, nil
		}
	}
}

func (r reading) call(text string) (rest string, err error) {
	for i, tag := range r.form.GetTags() {
		body, is := strings.CutPrefix(text, tag.GetBegin())
		if !is {
			continue
		}
		d := json.NewDecoder(strings.NewReader(body))
		var value map[string]any
		if err := d.Decode(&value); err != nil {
			return "", fmt.Errorf("%q: %w", body, err)
		}
		if i == 0 || tag.GetJsonSchema() == point {
			parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(body[:d.InputOffset()]))
			if err != nil {
				return "", err
			}
			if err := r.f.Validate(parsed); err != nil {
				return "", err
			}
		}
		rest, is := strings.CutPrefix(body[d.InputOffset():], tag.GetEnd())
		if !is {
			return "", fmt.Errorf("%q does not end the call", body[d.InputOffset():])
		}
		return rest, nil
	}
	return "", fmt.Errorf("%q begins no call", text)
}

// Every output that is drawn under the masks is what other means take for free text with calls;
// each mask on the way is what trying each token gives; free text may be anything.
func TestTags(t *testing.T) {
	longtest.OneGoroutine(t)
	all := taggedTexts()
	v := taggedVocabulary(t, all)
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(point))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("point.json", schema); err != nil {
		t.Fatal(err)
	}
	f := compiler.MustCompile("point.json")
	for name, source := range tagged {
		t.Run(name, func(t *testing.T) {
			form, err := grammar.Compile(t.Context(), structuralTags(source), v)
			if err != nil {
				t.Fatal(err)
			}
			if err := grammarCompiles(t, source); err != nil {
				t.Errorf("without a vocabulary: %v", err)
			}
			calls, ended := 0, 0
			for seed := range uint64(40) {
				r := rand.New(rand.NewPCG(seed, 5))
				text, complete := drawTagged(t, form, source, all, r)
				if !complete {
					continue
				}
				ended++
				n, err := reading{source, f}.calls(text)
				if err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				calls += n
				if source.GetSingle() && n > 1 {
					t.Errorf("%q has %d calls", text, n)
				}
				if len(source.GetTriggers()) == 0 && n == 0 {
					t.Errorf("%q has no call", text)
				}
			}
			if ended < 10 || calls < 3 {
				t.Errorf("%d outputs ended, with %d calls", ended, calls)
			}
		})
	}
}

func grammarCompiles(t *testing.T, source *inferencev1.StructuralTags) error {
	t.Helper()
	_, err := grammar.Compile(t.Context(), structuralTags(source), nil)
	return err
}

// drawTagged draws an output, and checks the masks. Pieces of calls are drawn more often.
func drawTagged(t *testing.T, form *grammar.Grammar, source *inferencev1.StructuralTags, texts [][]byte, r *rand.Rand) (text string, ended bool) {
	t.Helper()
	c := form.Constrain([]int32{eos})
	shown := func(id int32) []byte {
		if at := id - firstSpecial(texts); at >= 0 {
			if slices.Contains(source.GetSpecialTokens(), special[at]) {
				return []byte("\xff" + special[at] + "\xff") // as grammars have them
			}
			return nil
		}
		if bytes.IndexByte(texts[id], 0xFF) >= 0 {
			return nil // it counts as a special token
		}
		return texts[id]
	}
	var out []byte
	var tokens []int32
	for len(tokens) < 200 {
		mask := c.Allowed(tokens)
		var ids []int32
		for id := range int32(len(texts)) {
			is := allowed(mask, id)
			if next := shown(id); id != eos && next != nil && len(tokens) < 20 {
				if want := form.Begins(append(bytes.Clone(out), next...)); is != want {
					t.Fatalf("after %q, %q is allowed: %v", out, next, is)
				}
			}
			if !is {
				continue
			}
			ids = append(ids, id)
			if len(tokens) == 0 && id >= int32(len(texts))-30 {
				ids = append(ids, slices.Repeat([]int32{id}, 200)...)
			}
			if id == eos || id >= int32(len(texts))-30 || strings.ContainsAny(string(texts[id]), `"]}`) {
				for range 15 {
					ids = append(ids, id)
				}
			}
		}
		if allowed(mask, eos) != form.Accepts(out) {
			t.Fatalf("the end after %q is allowed: %v", out, allowed(mask, eos))
		}
		if len(ids) == 0 {
			t.Fatalf("nothing is allowed after %q", out)
		}
		id := ids[r.IntN(len(ids))]
		if id == eos {
			return strings.ReplaceAll(string(out), "\xff", ""), true
		}
		tokens, out = append(tokens, id), append(out, shown(id)...)
	}
	return "", false
}

// Where text is free, everything may come, special tokens too, which change nothing.
func TestFreeTextIsFree(t *testing.T) {
	all := taggedTexts()
	form, err := grammar.Compile(t.Context(), structuralTags(tagged["marked"]), taggedVocabulary(t, all))
	if err != nil {
		t.Fatal(err)
	}
	c := form.Constrain([]int32{eos})
	id := func(text string) int32 {
		return int32(slices.IndexFunc(all, func(b []byte) bool { return string(b) == text }))
	}
	think := firstSpecial(all) + 1
	want := []string{"x<call>y", "<call>\n{\"name\": \"h"}
	for _, tokens := range [][]int32{nil, {id("the")}, {id("<cal")}, {think}, {id("<cal"), think}, {id("\xff"), id("<<")}} {
		mask := c.Allowed(tokens)
		var not []string
		for token := range int32(len(all)) {
			if !allowed(mask, token) {
				not = append(not, string(all[token]))
			}
		}
		if !slices.Equal(not, want) {
			t.Errorf("after %v these are not allowed: %q, want %q", tokens, not, want)
		}
	}
	// The end is the end, and no special token.
	if c.Allowed([]int32{id("the"), eos}) != nil {
		t.Error("something is allowed behind the end")
	}
	if c.Allowed([]int32{id("<call>"), think}) != nil {
		t.Error("a special token is allowed within a call")
	}
}

// Where only a special token may come, it is forced: the byte that marks it in grammars is no other
// way to it.
func TestForcedSpecialTokens(t *testing.T) {
	all := taggedTexts()
	source := proto.CloneOf(tagged["named"])
	source.Triggers, source.Tags = nil, source.Tags[:1]
	form, err := grammar.Compile(t.Context(), structuralTags(source), taggedVocabulary(t, all))
	if err != nil {
		t.Fatal(err)
	}
	calls := firstSpecial(all)
	f := int32(slices.IndexFunc(all, func(b []byte) bool { return string(b) == "f" }))
	if got, open := form.Constrain([]int32{eos}).Forced(nil, 8); !slices.Equal(got, []int32{calls, f, calls + 2, '{' + 1}) || !open {
		t.Errorf("%v are forced, open %v", got, open)
	}
}

// A special token may come also beside a form with more ways on than are followed.
func TestSpecialTokenBesideManyWays(t *testing.T) {
	all := taggedTexts()
	source := proto.CloneOf(tagged["named"])
	other := `root ::= "1"` + strings.Repeat(` | p "1"`, 8) + "\n" + `p ::= "x"` + strings.Repeat(` | "(" p "2"`, 12)
	source.Triggers, source.Otherwise = nil, gbnf(other)
	form, err := grammar.Compile(t.Context(), structuralTags(source), taggedVocabulary(t, all))
	if err != nil {
		t.Fatal(err)
	}
	mask := form.Constrain([]int32{eos}).Allowed(nil)
	if allowed(mask, '('+1) {
		t.Error("what has too many readings is allowed")
	}
	if !allowed(mask, 'x'+1) {
		t.Error("x is not allowed")
	}
	if !allowed(mask, firstSpecial(all)) {
		t.Error("the special token is not allowed")
	}
}

// What tags cannot be is refused by the field that is wrong.
func TestTagsRefused(t *testing.T) {
	for _, c := range []struct {
		field, says string
		change      func(*inferencev1.StructuralTags)
	}{
		{"tags", "outside 1 to 1537", func(s *inferencev1.StructuralTags) { s.Tags = nil }},
		{"tags[1].json_schema", "/properties/a/not: the keyword is not supported", func(s *inferencev1.StructuralTags) {
			s.Tags[1].JsonSchema = `{"properties":{"a":{"not":{}}}}`
		}},
		{"tags[0].json_schema", "nothing matches it", func(s *inferencev1.StructuralTags) { s.Tags[0].JsonSchema = "false" }},
		{"triggers[0]", "no tag begins with it", func(s *inferencev1.StructuralTags) { s.Triggers[0] = "call" }},
		{"triggers[1]", "contains triggers[0]", func(s *inferencev1.StructuralTags) { s.Triggers = append(s.Triggers, "x<call>") }},
		{"triggers[1]", "is empty", func(s *inferencev1.StructuralTags) { s.Triggers = append(s.Triggers, "") }},
		{"tags", "the fixed texts have", func(s *inferencev1.StructuralTags) {
			s.Triggers = slices.Repeat([]string{strings.Repeat("x", grammar.MaxSourceBytes)}, 2)
		}},
		{"special_tokens[0]", "is empty", func(s *inferencev1.StructuralTags) { s.SpecialTokens = []string{""} }},
		{"special_tokens", `no special token "<call>"`, func(s *inferencev1.StructuralTags) { s.SpecialTokens = []string{"<call>"} }},
		{"otherwise", "together with triggers", func(s *inferencev1.StructuralTags) { s.Otherwise = expression("a") }},
		{"otherwise.regex", "missing closing", func(s *inferencev1.StructuralTags) { s.Triggers, s.Repeats, s.Otherwise = nil, false, expression("(") }},
		{"otherwise.json_schema", "nothing matches it", func(s *inferencev1.StructuralTags) { s.Triggers, s.Repeats, s.Otherwise = nil, false, schema("false") }},
		{"otherwise.form", "is not set", func(s *inferencev1.StructuralTags) {
			s.Triggers, s.Repeats, s.Otherwise = nil, false, structuralTags(tagged["named"])
		}},
		{"tags", "the fixed texts have", func(s *inferencev1.StructuralTags) { s.Tags[0].Begin += strings.Repeat("x", grammar.MaxSourceBytes) }},
		{"tags", "the schemas have", func(s *inferencev1.StructuralTags) {
			for i := range s.Tags {
				s.Tags[i].JsonSchema = fmt.Sprintf(`{"description":"%d%s"}`, i, strings.Repeat("x", grammar.MaxSourceBytes/2))
			}
		}},
	} {
		source := proto.CloneOf(tagged["marked"])
		c.change(source)
		_, err := grammar.Compile(t.Context(), structuralTags(source), taggedVocabulary(t, taggedTexts()))
		var wrong *grammar.Error
		if !errors.As(err, &wrong) || wrong.Field != "structural_tags."+c.field || !strings.Contains(wrong.Problem, c.says) {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

// Schemas that are equal count once.
func TestTagsWithOneSchema(t *testing.T) {
	source := proto.CloneOf(tagged["marked"])
	for i := range source.Tags {
		source.Tags[i].JsonSchema = `{"description":"` + strings.Repeat("x", grammar.MaxSourceBytes-100) + `"}`
	}
	if _, err := grammar.Compile(t.Context(), structuralTags(source), taggedVocabulary(t, taggedTexts())); err != nil {
		t.Error(err)
	}
}

// An output is a group of tags, or has the other form.
func TestTagsOrAnotherForm(t *testing.T) {
	all := taggedTexts()
	v := taggedVocabulary(t, all)
	source := proto.CloneOf(tagged["marked alone"])
	source.Otherwise = schema(`{"type":"object","properties":{"<call>":{"type":"string"}},"required":["<call>"],"additionalProperties":false}`)
	form, err := grammar.Compile(t.Context(), structuralTags(source), v)
	if err != nil {
		t.Fatal(err)
	}
	call := "<call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</call>"
	for text, want := range map[string]bool{
		call: true, call + "\n" + call: true, `{"<call>":"<call>"}`: true, "": false, "x": false, call + `{"<call>":""}`: false, `{"<call>":""}` + call: false, `{}`: false,
	} {
		if got := form.Accepts([]byte(text)); got != want {
			t.Errorf("%q is accepted: %v", text, got)
		}
	}
	for seed := range uint64(20) {
		drawTagged(t, form, source, all, rand.New(rand.NewPCG(seed, 6)))
	}
}
