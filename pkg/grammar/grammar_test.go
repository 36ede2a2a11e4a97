package grammar_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// A long enum is no more than its texts, which begin alike.
func TestLongEnum(t *testing.T) {
	longtest.OneGoroutine(t)
	var values []string
	for i := range 5000 {
		values = append(values, fmt.Sprintf(`"value %d"`, i))
	}
	g, err := grammar.Compile(t.Context(), schema(`{"enum":[`+strings.Join(values, ",")+`]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"value 0"`, `"value 4999"`, `"value 70"`} {
		if !g.Accepts([]byte(text)) {
			t.Errorf("does not accept %s", text)
		}
	}
	for _, text := range []string{`"value 5000"`, `"value "`, `"value 07"`} {
		if g.Accepts([]byte(text)) {
			t.Errorf("accepts %s", text)
		}
	}
}

// A pattern is made once, however many values it is held against.
func TestLongEnumWithFormat(t *testing.T) {
	var values []string
	for i := range 300 {
		values = append(values, fmt.Sprintf(`"user%d@example.com"`, i))
	}
	values = append(values, `"nobody"`)
	text := `{"type":"string","format":"email","enum":[` + strings.Join(values, ",") + `]}`
	list := `{"type":"array","items":{"type":"string","format":"email"},"enum":[[` + strings.Join(values, "],[") + `]]}`
	for source, output := range map[string]string{text: "%s", list: "[%s]"} {
		g, err := grammar.Compile(t.Context(), schema(source), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range values {
			if got, want := g.Accepts(fmt.Appendf(nil, output, value)), value != `"nobody"`; got != want {
				t.Errorf("%.40s accepts %s: %v", source, value, got)
			}
		}
	}
}

// Whatever is not supported is refused, with where it stands.
func TestRefused(t *testing.T) {
	doubling := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range 40 {
		doubling += fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling += `"d40":{}}}`
	names := make([]string, 30000)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	for _, c := range []struct{ source, says string }{
		{`{"properties":{"a":{"not":{}}}}`, "/properties/a/not: the keyword is not supported"},
		{`{"items":{"anyOf":[{"type":"null"},{"if":{}}]}}`, "/items/anyOf/1/if: the keyword is not supported"},
		{`{"patternProperties":{}}`, "/patternProperties: the keyword is not supported"},
		{`{"colour":1}`, "/colour: the keyword is not supported"},
		{`{"type":"date"}`, `/type: "date" is no type`},
		{`{"type":"string","format":"uri"}`, `/format: "uri" is not supported`},
		{`{"type":"string","pattern":"(?=a)"}`, "/pattern: "},
		{`{"type":"string","pattern":"a^b"}`, "/pattern: "},
		{`{"uniqueItems":true}`, "/uniqueItems: true is not supported"},
		{`{"multipleOf":0.1}`, "/multipleOf: is supported only as 1"},
		{`{"oneOf":[{"type":"integer"},{"minimum":3}]}`, "/oneOf: is supported only where no value can match two"},
		{`{"$ref":"#"}`, "refers to itself"},
		{`{"$ref":"other.json"}`, "/$ref: \"other.json\" is not supported"},
		{`{"$ref":"#/$defs/none"}`, "leads nowhere"},
		{`{"type":"object","properties":{"a":false},"required":["a"]}`, "nothing matches it"},
		{`{"type":"string","minLength":3,"maxLength":2}`, "nothing matches it"},
		{`{"$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}},"$ref":"#/$defs/a"}`, "nothing matches it"},
		{`{"maxItems":-1}`, "/maxItems: has to be a whole number"},
		{`{"type":"string","pattern":"((a{100}){100}){100}"}`, "/pattern: "},
		{doubling, "takes too long"},
		{`{"required":["` + strings.Join(names, `","`) + `"],"anyOf":[{}` + strings.Repeat(",{}", 99) + `]}`, "takes too long"},
		{`[]`, "has to be an object, true or false"},
		{`{"a":1,"a":2}`, `the member "a" comes twice`},
		{`{`, "is not valid JSON"},
		{`{} {}`, "something follows the first value"},
		{`{} x`, "something follows the first value"},
		{strings.Repeat(`{"items":`, 100) + "{}" + strings.Repeat("}", 100), "more than 64 arrays and objects"},
	} {
		_, err := grammar.Compile(t.Context(), schema(c.source), nil)
		var wrong *grammar.Error
		if !errors.As(err, &wrong) || wrong.Field != "json_schema" || !strings.Contains(wrong.Problem, c.says) {
			t.Errorf("%.100s: %v, want %q", c.source, err, c.says)
		}
	}
	for name, source := range map[string]*inferencev1.StructuredOutput{
		"form": {}, "json_object": {Form: &inferencev1.StructuredOutput_JsonObject{}}, "regex": expression("("),
		"choice.texts": {Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"a", ""}}}},
	} {
		var wrong *grammar.Error
		if _, err := grammar.Compile(t.Context(), source, nil); !errors.As(err, &wrong) || wrong.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A number of characters or items that no output reaches is no limit as the most, and impossible as
// the least.
func TestNumbersOutOfReach(t *testing.T) {
	for _, n := range []string{"2147483647", "4294967295", "9007199254740991", "1e20"} {
		for _, text := range []string{`{"type":"string","maxLength":` + n + `}`, `{"type":"string","maxLength":` + n + `,"pattern":"^a*$"}`} {
			g, err := grammar.Compile(t.Context(), schema(text), nil)
			if err != nil {
				t.Errorf("%s: %v", text, err)
			} else if !g.Accepts([]byte(`"a"`)) {
				t.Errorf("%s: refuses a letter", text)
			}
		}
		for keyword, says := range map[string]string{
			`"type":"string","minLength"`: "nothing matches it",
			`"minItems"`:                  "/minItems: is more than 1024",
			`"maxItems"`:                  "/maxItems: is more than 1024",
			`"minProperties"`:             "/minProperties: is not supported",
		} {
			text := "{" + keyword + ":" + n + "}"
			if _, err := grammar.Compile(t.Context(), schema(text), nil); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", text, err, says)
			}
		}
	}
}

// Ranges of numbers against arithmetic.
func TestRanges(t *testing.T) {
	longtest.OneGoroutine(t)
	r := rand.New(rand.NewPCG(8, 9))
	number := func() string {
		return strconv.FormatFloat(math.Round((r.Float64()-0.5)*math.Pow(10, float64(r.IntN(5)))*100)/100, 'f', -1, 64)
	}
	for range 300 {
		low, high, integer := number(), number(), r.IntN(2) == 0
		kind := map[bool]string{true: "integer", false: "number"}[integer]
		keywords := [][2]string{{"minimum", "maximum"}, {"exclusiveMinimum", "exclusiveMaximum"}}[r.IntN(2)]
		text := fmt.Sprintf(`{"type":%q,%q:%s,%q:%s}`, kind, keywords[0], low, keywords[1], high)
		form, err := grammar.Compile(t.Context(), schema(text), nil)
		if err != nil && !strings.Contains(err.Error(), "nothing matches it") {
			t.Fatal(err)
		}
		from, _ := strconv.ParseFloat(low, 64)
		to, _ := strconv.ParseFloat(high, 64)
		for range 60 {
			candidate := []string{number(), low, high, strconv.Itoa(r.IntN(100) - 50)}[r.IntN(4)]
			v, _ := strconv.ParseFloat(candidate, 64)
			want := v >= from && v <= to && (!integer || v == math.Trunc(v))
			if keywords[0] != "minimum" {
				want = want && v != from && v != to
			}
			if candidate == "-0" {
				continue
			}
			if got := form != nil && form.Accepts([]byte(candidate)); got != want {
				t.Fatalf("%s: %s is accepted: %v", text, candidate, got)
			}
		}
	}
}

// What goes wrong elsewhere: spaces, depth, names that are spelled otherwise, tokens that were
// taken back.
func TestTexts(t *testing.T) {
	object := &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
	closed := schema(`{"type":"object","properties":{"a":{},"bc":{"type":"integer"}},"additionalProperties":{"type":"boolean"}}`)
	alike := &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"b", "abce", "ab", "abcd"}}}}
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	for _, c := range []struct {
		form *inferencev1.StructuredOutput
		text string
		want bool
	}{
		{object, `{}`, true},
		{object, `{"a": [1, -2.5e-3, "\u00e9\ud83d\ude00\n", {}, []]}`, true},
		{object, "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": null\n  }\n}", true},
		{object, deep, true},
		{object, strings.Repeat(`{"a":`, 300) + "1" + strings.Repeat("}", 300), false},
		{object, `[1]`, false},
		{object, `{"a":01}`, false},
		{object, `{"a":"\ud800"}`, false},
		{object, "{\"a\":\"\xff\"}", false},
		{object, `{"a":1,}`, false},
		{object, ` {}`, false},
		{closed, `{"bc":1,"d":true}`, true},
		{closed, `{"b":true,"bcd":false,"\n":true}`, true},
		{closed, `{"d":1}`, false},
		{closed, `{"bc":true}`, false},
		{closed, `{"d":true,"bc":true}`, false},
		{closed, `{"b\u0063":true}`, false},
		{closed, `{"\u0062c":true}`, false},
		{closed, `{"x\u0062c":true}`, true},
		{schema(`{"multipleOf":1,"type":"number"}`), "1", true},
		{schema(`{"multipleOf":1,"type":"number"}`), "1.5", false},
		{alike, "ab", true},
		{alike, "abc", false},
		{alike, "abce", true},
		{alike, "b", true},
		{alike, "ba", false},
		{expression(`(?:yes|no)!?`), "no!", true},
		{expression(`\u0041\ud83d\ude00`), "A😀", true},
		{expression(`^a|b$`), "b", true},
		{expression(`a`), "ab", false},
	} {
		form, err := grammar.Compile(t.Context(), c.form, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := form.Accepts([]byte(c.text)); got != c.want {
			t.Errorf("%v accepts %s: %v", c.form, c.text, got)
		}
	}
}

// Anchors are where alternatives begin and end, also of what those have in common.
func TestAnchors(t *testing.T) {
	for _, text := range []string{
		"cat$|car$", "foo$|foobar$", "yes$|yep$", "^(?:a$|bc$)", "^cat|^car", "(^a|b)c$", "a(b$|(c|d$))", "a(?:$|b)", "^(^a|b$)$", "(?:^|b)a(?:$|c)", "^$|^a$", "[ab]cat$|[ab]car$", "[a-c]{2}x$|[a-c]{2}y$", "^(?:a[bc]t|a[bc]r)$",
	} {
		whole, err := grammar.Compile(t.Context(), expression(text), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		found, err := grammar.Compile(t.Context(), schema(fmt.Sprintf(`{"type":"string","pattern":%q}`, text)), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, output := range []string{"", "a", "b", "c", "ab", "ac", "ad", "ba", "bc", "xa", "xbc", "bac", "acx", "cat", "car", "xcar", "carx", "foo", "foobar", "foox", "yes", "yep", "acat", "bcar", "abx", "xaby", "act", "abr", "abrx"} {
			if got, want := whole.Accepts([]byte(output)), regexp.MustCompile("^(?:"+text+")$").MatchString(output); got != want {
				t.Errorf("%s matches %q: %v", text, output, got)
			}
			if got, want := found.Accepts([]byte(`"`+output+`"`)), regexp.MustCompile(text).MatchString(output); got != want {
				t.Errorf("%s is found in %q: %v", text, output, got)
			}
		}
	}
}

// The state is a function of the tokens: a constraint that is asked about other tokens than
// before, fewer or none of them the same, answers as a new one does.
func TestTokensTakenBack(t *testing.T) {
	longtest.OneGoroutine(t)
	all := texts()
	form, err := grammar.Compile(t.Context(), schema(schemas["person"]), vocabulary(t, all))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(4, 4))
	_, one, _ := walk(t, form, all, r, 60)
	_, other, _ := walk(t, form, all, r, 60)
	used := form.Constrain([]int32{eos})
	for range 300 {
		tokens := [][]int32{one, other}[r.IntN(2)]
		tokens = tokens[:r.IntN(len(tokens)+1)]
		want := form.Constrain([]int32{eos}).Allowed(tokens)
		got := used.Allowed(tokens)
		for id := range int32(len(all)) {
			if allowed(got, id) != allowed(want, id) {
				t.Fatalf("after %v, token %d is allowed: %v", tokens, id, allowed(got, id))
			}
		}
	}
	for _, wrong := range [][]int32{{eos}, {-1}, {int32(len(all))}, {5, 5, 5}, append(one[:1:1], eos)} {
		if mask := used.Allowed(wrong); mask != nil {
			t.Errorf("after %v something is allowed", wrong)
		}
	}
}

// Dates have a 29th of February in leap years alone.
func TestLeapYears(t *testing.T) {
	longtest.OneGoroutine(t)
	form, err := grammar.Compile(t.Context(), schema(`{"type":"string","format":"date"}`), nil)
	if err != nil {
		t.Fatal(err)
	}

	for year := range 2500 {
		text := fmt.Sprintf("%04d-02-29", year)
		want := year%4 == 0 && (year%100 != 0 || year%400 == 0)
		if got := form.Accepts([]byte(`"` + text + `"`)); got != want {
			t.Errorf("%s is accepted: %v", text, got)
		}
	}
}

// ending ends after it was asked so many times whether it has.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// A compilation ends with its context, wherever it is, and says so, not that the source is wrong.
func TestCompileEnds(t *testing.T) {
	longtest.OneGoroutine(t)
	var rules, enum strings.Builder
	rules.WriteString("root ::= r0")
	for i := range 400 {
		fmt.Fprintf(&rules, " | r%d", i)
	}
	rules.WriteString("\n")
	for i := range 400 {
		fmt.Fprintf(&rules, "r%d ::= [a-z]{1,9} \"%d\"\n", i, i)
	}
	for i := range 100 {
		fmt.Fprintf(&enum, `{"type":"object","properties":{"k":{"const":%d}},"required":["k"]},`, i)
	}
	chain := "root ::= \"a\" (b0 | root)\n"
	for i := range 2000 {
		chain += fmt.Sprintf("b%d ::= \"a\" (b%d | root)\n", i, i+1)
	}
	chain += "b2000 ::= \"b\"\n"
	triggers := &inferencev1.StructuralTags{Tags: []*inferencev1.StructuralTag{{}}}
	for i := range 1500 {
		triggers.Triggers = append(triggers.Triggers, fmt.Sprintf("<%d>", min(i, 1498))) // the last two are the same
	}
	for name, source := range map[string]*inferencev1.StructuredOutput{
		"many triggers":   structuralTags(triggers),
		"many rules":      gbnf(rules.String()),
		"a chain":         gbnf(chain),
		"repetitions":     expression("(?:[a-zé]{1,40}[0-9]{1,40}){1,9}[a-z]{900}"),
		"a product":       schema(`{"type":"string","pattern":"^(?:[a-z]{2,40} ){1,9}$","minLength":5,"maxLength":900}`),
		"alternatives":    schema(`{"oneOf":[` + strings.TrimSuffix(enum.String(), ",") + `]}`),
		"several schemas": schema(`{"allOf":[` + strings.Repeat(`{"anyOf":[{"minLength":1},{"maxLength":9},{"maximum":3}]},`, 4) + `{}]}`),
	} {
		counted := &ending{t.Context(), 1 << 30}
		_, want := grammar.Compile(counted, source, nil)
		asked := 1<<30 - counted.left
		if asked < 3 {
			t.Errorf("%s: the context is asked %d times", name, asked)
		}
		for _, left := range []int{0, 1, asked / 2, asked - 1} {
			if g, err := grammar.Compile(&ending{t.Context(), left}, source, nil); g != nil || !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: when the context ends after %d of %d times: %v", name, left, asked, err)
			}
		}
		if _, err := grammar.Compile(&ending{t.Context(), asked}, source, nil); fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	// A cache does not keep that it ended.
	c := grammar.NewCache(nil)
	if _, _, err := c.Get(&ending{t.Context(), 2}, "one", gbnf(rules.String())); !errors.Is(err, context.Canceled) {
		t.Errorf("of a context that ended: %v", err)
	}
	if _, err := get(t, c, gbnf(rules.String())); err != nil {
		t.Error(err)
	}
}
