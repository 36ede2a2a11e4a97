package chat_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// workOf renders an expression over large values many times. Each takes work in
// proportion to 256 KiB of text, 16384 elements or 16384 keys.
func workOf(t *testing.T, expression string) (allocated uint64, err error) {
	t.Helper()
	text := strings.Repeat("Ab 1\n", 50_000)
	words, mapping := make([]any, 16384), make(map[string]any)
	for i := range words {
		words[i] = "word" + strconv.Itoa(i)
		mapping["word"+strconv.Itoa(i)] = i
	}
	source := "{% set ns = namespace(n=0) %}{% set options = ('b',) * 65536 %}{% set nested = [words, words] %}{% set same = [words, words] %}" +
		"{% macro f() %}{% endmacro %}{% for i in range(500) %}{% set x = " + expression + " %}{% endfor %}"
	template, parseErr := chat.Parse("t", source, nil)
	if parseErr != nil {
		t.Fatal(parseErr)
	}
	c := chat.Conversation{Messages: []chat.Message{{Role: "user"}}, Arguments: map[string]any{
		"text": text, "other": text[:len(text)-1] + "x", "digits": strings.Repeat("1", len(text)), "words": words, "mapping": mapping,
		"long": map[string]any{text: 1},
	}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = chat.With(template, jinja.Options{Now: now, MaxWork: maxWork}).Render(t.Context(), c)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

const (
	maxWork = 8 << 20
	// mostAllocated is what a rendering may allocate in all: some times its work.
	mostAllocated = 4 * maxWork
)

// Whatever takes work in proportion to a value is charged for it, before.
func TestWorkIsCounted(t *testing.T) {
	for i, expression := range []string{
		// Filters.
		"text|capitalize", "text|count", "text|e", "text|escape", "text|indent(2)", "'a\n'|indent(text)", "digits|int", "digits|float", "text|length",
		"text|list", "text|lower", "text|replace('A', 'B')", "'a'|replace('a', text)", "text|replace('', 'x')", "text|reverse", "words|reverse", "text|title",
		"text|trim('Ab 1\n')", "'a'|trim(text)", "(text ~ 'é')|trim(text)", "text|upper", "text|wordcount", "words|join(', ')", "[1, 2]|join(text)", "[]|join(words)",
		"words|sort", "[text, other]|sort", "words|unique", "[text, text]|unique", "words|max", "words|min", "[text, other]|max", "words|batch(2)", "[1]|batch(100000, 0)",
		"words|map('upper')", "words|map(attribute='a')", "[1]|map(attribute=text)", "words|select", "words|reject('string')", "words|selectattr('a')",
		"words|rejectattr('a', 'defined')", "words|map('length')|sum", "mapping|items", "mapping|dictsort", "words|string", "words|safe", "nested|e",
		"words|tojson", "text|tojson", "mapping|tojson", "mapping|tojson(sort_keys=true)", "words|tojson(separators=('x' * 1000, ':'))", "[1, 2]|tojson(separators=(text, ':'))",
		"{1: 2}|tojson(separators=(',', text))", "[1, 2]|tojson(indent=text)", "[1]|tojson(separators=(words, ':'))", "words|first ~ words", "mapping|list",
		"'a'|attr(text)", "words|length ~ words", "[other]|sort(attribute=text)",
		// Tests.
		"text is lower", "text is upper", "words is lower", "text is filter", "text is test", "text is eq(other)", "nested is eq same", "nested is ne same", "nested is lt same",
		"text is ge other", "'zz' is in text", "'zz' is in words", "text is in long", "nested is sameas same",
		// Operators.
		"text ~ 'a'", "words ~ 'a'", "text + other", "text * 2", "words + words", "words * 2", "2 * options", "text == other", "nested == same", "nested != same", "nested < same",
		"'zz' in text", "'zz' not in words", "text in long", "long[text]", "mapping[text]", "text[1:]", "text[::-1]", "text[::2]", "words[1:]", "words[::-1]", "text[5]",
		"{text: 1}", "f(*words)", "[text][0]['a' ~ text]",
		// Functions.
		"range(100000)", "dict(mapping)", "dict(long)", "namespace(mapping)", "strftime_now(text)", "strftime_now('%c' * 10000)", "loop.changed(words)", "joiner(text)() ~ text",
		// Methods.
		"mapping.items()", "mapping.keys()|list", "mapping.values()|list", "mapping.get(text)", "long.get(text)", "words.index('word16383')", "words.count('a')",
		"text.upper()", "text.lower()", "text.casefold()", "text.title()", "text.capitalize()", "text.swapcase()", "digits.isdigit()", "digits.isnumeric()", "digits.isdecimal()",
		"text.isalpha()", "text.isalnum()", "text.isspace()", "text.isupper()", "text.islower()", "text.isascii()", "text.strip('Ab 1\n')", "text.lstrip()", "text.rstrip('\n')", "'a'.strip(text)",
		"text.split()", "text.split('\n')", "text.split('\n', 1)", "text.rsplit('\n', 1)", "text.splitlines()", "text.splitlines(true)", "text.partition('x')", "text.rpartition('x')",
		"'a'.startswith(options)", "'a'.endswith(options)", "text.startswith(other)", "text.endswith(other)", "text.removeprefix('a')", "text.removesuffix('a')", "text.replace('A', 'B')",
		"text.replace('A', 'B', 1)", "text.find('x')", "text.rfind('x')", "text.index('\n')", "text.rindex('A')", "text.count('A')", "', '.join(words)", "text.join('abc')",
		"text.zfill(5)", "'a'.zfill(100000)", "'a'.ljust(100000)", "'a'.rjust(100000, 'é')", "'a'.center(100000)",
	} {
		if i%8 != 0 && !longtest.Wanted() {
			continue // a sample
		}
		t.Run(expression, func(t *testing.T) {
			allocated, err := workOf(t, strings.ReplaceAll(expression, "\n", `\n`))
			if err == nil || !strings.Contains(err.Error(), "ran too long") {
				t.Errorf("error %v", err)
			}
			if allocated > mostAllocated {
				t.Errorf("%d bytes were allocated", allocated)
			}
		})
	}
}

// What looks at a little of a value may do so often, and makes no more of it.
func TestLittleWork(t *testing.T) {
	for _, expression := range []string{
		"mapping[nested]", "words[nested]", "text|first", "text|last", "nothing|default(text)", "text is string", "words is iterable", "text|safe", "words[5]", "words|list|first",
		"mapping.nothing", "mapping.copy()", "text|trim", "text[text]|default(1)",
	} {
		t.Run(expression, func(t *testing.T) {
			if allocated, err := workOf(t, expression); allocated > 2*maxWork {
				t.Errorf("%d bytes were allocated, error %v", allocated, err)
			}
		})
	}
}

// Blocks print and filter what is charged, and many names are looked up.
func TestWorkOfStatements(t *testing.T) {
	var names, arguments strings.Builder
	for i := range 20_000 {
		names.WriteString("{% set a" + strconv.Itoa(i) + " = 1 %}")
		arguments.WriteString("b" + strconv.Itoa(i) + "=1,")
	}
	list := "{% set x = range(20000)|list %}"
	for name, c := range map[string]struct {
		source  string
		stopped bool
	}{
		"a list is printed":       {list + "{% for i in range(1000) %}{% set y %}{{ x }}{% endset %}{% endfor %}", true},
		"a call block prints":     {list + "{% for i in range(1000) %}{% set y %}{% call x.index(19999) %}{% endcall %}{% endset %}{% endfor %}", true},
		"a filter block prints":   {"{% for i in range(1000) %}{% set y %}{% filter replace('a', 'b' * 100000) %}a{% endfilter %}{% endset %}{% endfor %}", true},
		"a list is unpacked":      {list + "{% for i in range(10000) %}{% for y in x %}{% break %}{% endfor %}{% endfor %}", true},
		"arguments without a use": {"{% macro f() %}{% endmacro %}{% for i in range(1000) %}{% set y = f(" + arguments.String() + ") %}{% endfor %}", true},
		"names":                   {names.String() + "{% for i in range(10000) %}{% set y = a19999 %}{% endfor %}", false},
		"dictionaries are kept":   {"{% set ns = namespace(x=1) %}{% for i in range(10000) %}{% set ns.x = [ns.x" + strings.Repeat(", {}", 1000) + "] %}{% endfor %}", true},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := renderSource(t, c.source, chat.Conversation{Messages: []chat.Message{{Role: "user"}}})
			runtime.ReadMemStats(&after)
			if stopped := err != nil && strings.Contains(err.Error(), "ran too long"); stopped != c.stopped || err != nil && !stopped {
				t.Errorf("error %v", err)
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 256<<20 {
				t.Errorf("%d bytes were allocated", allocated)
			}
		})
	}
}

// The longest conversations that routers take, of more text than contexts hold, are
// no more work than there may be.
func TestLongConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var c chat.Conversation
	for i := range 4096 {
		c.Messages = append(c.Messages, chat.Message{Role: []string{"user", "assistant"}[i%2], Content: strings.Repeat("Ab 1é\n\t. ", 102)})
	}
	c.Messages = c.Messages[:4095] // the last is the user's
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := renderSource(t, string(source), c); err != nil || len(out) < 3<<20 {
			t.Errorf("%s: %d bytes, error %v", filepath.Base(file), len(out), err)
		}
	}
}

// Messages of errors are short, whatever a template makes of them.
func TestMessagesAreCut(t *testing.T) {
	for name, source := range map[string]string{
		"raised":       "{{ raise_exception('é' * 1000000) }}",
		"a key":        "{{ {}['a' * 1000000].b }}",
		"an attribute": "{{ (1|attr('a' * 1000000)).b }}",
		"a filter":     "{{ [1]|map('a' * 1000000)|list }}",
		"a list":       "{{ {}[range(100000)|list].b }}",
		"a string":     "{{ 1 '" + strings.Repeat("a", 1_000_000) + "' }}",
		"a name":       "{{ " + strings.Repeat("a", 1_000_000) + " }}",
		"a number":     "{{ " + strings.Repeat("1", 1_000_000) + " }}",
		"a long path":  "{{ 1|a" + strings.Repeat(".a", 400_000) + " }}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderSource(t, source, chat.Conversation{Messages: []chat.Message{{Role: "user"}}})
			var problem *chat.Error
			if !errors.As(err, &problem) || len(problem.Message) > 4<<10+len("…") || strings.ToValidUTF8(problem.Message, "") != problem.Message {
				t.Errorf("%.200v", err)
			}
		})
	}
}

// Neighbouring strings are one, and joining them is no work to speak of.
func TestManyStrings(t *testing.T) {
	source := "{{ " + strings.Repeat(`"aa"`, 200_000) + " }}"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out, err := renderSource(t, source, chat.Conversation{Messages: []chat.Message{{Role: "user"}}})
	runtime.ReadMemStats(&after)
	if err != nil || len(out) != 400_000 {
		t.Errorf("%d bytes, error %v", len(out), err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 256<<20 {
		t.Errorf("%d bytes were allocated", allocated)
	}
}
