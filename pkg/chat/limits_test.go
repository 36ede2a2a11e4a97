package chat_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
)

// Templates that would never end, or would take all memory, are stopped.
func TestRunawayTemplatesAreStopped(t *testing.T) {
	for name, source := range map[string]string{
		"loops in loops":        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
		"a range":               "{% for a in range(10**9) %}{% endfor %}",
		"a range backwards":     "{{ range(10**18, 0, -1) | length }}",
		"a macro of itself":     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"macros of each other":  "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"twice and twice again": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"repeated":              "{{ 'aaaaaaaaaa' * 10**12 }}",
		"a repeated list":       "{{ [1, 2] * 10**12 }}",
		"a list of itself":      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
		"JSON of the same":      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
		"equality of the same":  "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}{{ ns.x < ns.y }}{{ ns.x is eq ns.y }}",
		"replacing":             "{% set ns = namespace(x='aaaa') %}{% for i in range(30) %}{% set ns.x = ns.x.replace('a', 'aaaa') %}{% endfor %}",
		"joining":               "{{ range(1000000) | join('a' * 10000) }}",
		"a wide text":           "{{ 'a'.zfill(10**12) }}",
		"an indented text":      "{{ ('\\n' * 1000000) | indent(1000000, blank=true) }}",
		"printing":              "{% for a in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
		"a loop of itself":      "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"a deep list":           "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}{{ ns.x | tojson }}",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := renderSource(t, source, chat.Conversation{Messages: []chat.Message{{Role: "user"}}})
			var problem *chat.Error
			if !errors.As(err, &problem) || problem.Line != 1 {
				t.Errorf("%d bytes, error %v", len(out), err)
			}
		})
	}
}

// What is nested deep in the source is refused before it can fill the stack.
func TestNestedSources(t *testing.T) {
	const deep = 100_000
	for name, source := range map[string]string{
		"parentheses": "{{ " + strings.Repeat("(", deep) + "1" + strings.Repeat(")", deep) + " }}",
		"lists":       "{{ " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + " }}",
		"not":         "{{ " + strings.Repeat("not ", deep) + "1 }}",
		"signs":       "{{ " + strings.Repeat("- ", deep) + "1 }}",
		"conditions":  "{{ " + strings.Repeat("1 if 1 else ", deep/2) + "1 }}",
		"blocks":      strings.Repeat("{% if 1 %}", deep/2) + strings.Repeat("{% endif %}", deep/4),
		"sums":        "{{ 1" + strings.Repeat("+1", deep) + " }}",
		"filters":     "{{ 1" + strings.Repeat("|abs", deep) + " }}",
		"attributes":  "{{ m" + strings.Repeat(".m", deep) + " }}",
		"a long one":  strings.Repeat("a", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderSource(t, source, chat.Conversation{Messages: []chat.Message{{Role: "user"}}})
			var problem *chat.Error
			if !errors.As(err, &problem) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestPromptsAreBounded(t *testing.T) {
	template, err := chat.Parse("t", "{% for m in messages %}{{ m.content }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	template = chat.With(template, jinja.Options{MaxOutputBytes: 100})
	c := chat.Conversation{Messages: []chat.Message{{Role: "user", Content: strings.Repeat("a", 100)}}}
	if out, err := template.Render(t.Context(), c); err != nil || len(out) != 100 {
		t.Errorf("%d bytes, error %v", len(out), err)
	}
	c.Messages[0].Content += "a"
	if _, err := template.Render(t.Context(), c); err == nil || !strings.Contains(err.Error(), "output is too long") {
		t.Errorf("error %v", err)
	}
}

func TestCancelledRendering(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	template, err := chat.Parse("t", "{% for a in range(10000) %}{{ a }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := template.Render(ctx, chat.Conversation{Messages: []chat.Message{{Role: "user"}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Whatever bytes a template is made of, it is parsed and rendered, or an error.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{
		"{% for m in messages %}{{ m.role + m['content'][1:] | trim }}{% endfor %}", "{{ 1 // 0 }}", "{%- set ns = namespace(a=1) -%}{{ ns.a }}",
		"{% macro f(a, b=1) %}{{ a }}{% endmacro %}{{ f(1) }}", "{{ [1, {'a': (1,)}] | tojson(indent=2) }}", "{% raw %}{{{% endraw %}",
		"{{ 'a'.center(5, 'xy') }}", "{{ -9223372036854775807 - 2 }}", "{{ messages[::-1] | sort(attribute='role') | map(attribute='content') | join }}",
	} {
		f.Add(seed)
	}
	of := conversations(f)
	f.Fuzz(func(t *testing.T, source string) {
		template, err := chat.Parse("t", source, map[string]string{"bos_token": "<s>"})
		if err != nil {
			var problem *chat.Error
			if !errors.As(err, &problem) || problem.Line < 1 {
				t.Fatalf("error %v", err)
			}
			return
		}
		template = chat.With(template, jinja.Options{Now: now, MaxOutputBytes: 1 << 20})
		if _, err := template.Render(t.Context(), of["a call and its result"]); err != nil && strings.Contains(err.Error(), "cannot be rendered") {
			t.Fatalf("it panicked: %v", err)
		}
	})
}
