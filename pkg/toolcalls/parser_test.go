package toolcalls_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/toolcalls"
)

// said is what an answer says: its content, and its calls as names and arguments.
type said struct {
	Content string
	Calls   [][2]string
}

// take takes events in, and checks their order.
func (s *said) take(t testing.TB, events []toolcalls.Event) {
	t.Helper()
	for _, e := range events {
		last := len(s.Calls) - 1
		switch e.Kind {
		case toolcalls.Text:
			if s.Content += e.Text; e.Text == "" {
				t.Error("an empty text is said")
			}
		case toolcalls.Begin:
			if s.Calls = append(s.Calls, [2]string{e.Text, ""}); e.Call != last+1 || e.Text == "" {
				t.Errorf("call %d, %q begins after %d", e.Call, e.Text, last)
			}
		case toolcalls.Arguments:
			if e.Call != last || e.Text == "" {
				t.Fatalf("arguments %q of call %d in call %d", e.Text, e.Call, last)
			}
			s.Calls[last][1] += e.Text
		case toolcalls.End:
			if e.Call != last || s.Calls[last][1] == "" {
				t.Errorf("call %d ends in call %d", e.Call, last)
			}
		}
	}
}

// parse reads a text in pieces.
func parse(t testing.TB, p *toolcalls.Parser, pieces ...string) (out said) {
	t.Helper()
	out.Calls = [][2]string{}
	for _, piece := range pieces {
		out.take(t, p.Add(piece))
	}
	out.take(t, p.Finish())
	if p.Calls() != len(out.Calls) {
		t.Errorf("%d calls are counted of %d", p.Calls(), len(out.Calls))
	}
	return out
}

type transcript struct {
	Format, Name, Text, Content string
	Single                      bool
	Calls                       [][2]string
}

func transcripts(t testing.TB) (out []transcript) {
	t.Helper()
	data, err := os.ReadFile("testdata/transcripts.json")
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// functions are those that transcripts may call.
var functions = []string{"get_weather", "add"}

// Answers of each family, at once, byte by byte and in any two pieces.
func TestTranscripts(t *testing.T) {
	for _, c := range transcripts(t) {
		format, is := toolcalls.Of(c.Format, "")
		if !is {
			t.Fatal(c.Format)
		}
		want := said{c.Content, c.Calls}
		for _, whole := range []bool{true, false} {
			ways := [][]string{{c.Text}, strings.Split(c.Text, "")}
			for i := range c.Text {
				ways = append(ways, []string{c.Text[:i], c.Text[i:]})
			}
			for _, pieces := range ways {
				p := format.NewParser(functions, whole)
				if c.Single {
					p.Single()
				}
				if diff := cmp.Diff(want, parse(t, p, pieces...)); diff != "" {
					t.Errorf("%s, %s, whole %v, %q (-want +got):\n%s", c.Format, c.Name, whole, pieces, diff)
					break
				}
			}
		}
	}
}

// Arguments come while they are made, where they are not held for the whole.
func TestArgumentsStream(t *testing.T) {
	for name, text := range map[string]string{
		toolcalls.Hermes:  "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"long",
		toolcalls.Llama3:  `{"name": "f", "parameters": {"a": "long`,
		toolcalls.Mistral: `[TOOL_CALLS]f[ARGS]{"a": "long`,
	} {
		format, _ := toolcalls.Of(name, "")
		var got said
		p := format.NewParser([]string{"f"}, false)
		got.take(t, p.Add(text))
		if len(got.Calls) != 1 || got.Calls[0] != [2]string{"f", `{"a": "long`} {
			t.Errorf("%s: %+v", name, got)
		}
		if events := format.NewParser([]string{"f"}, true).Add(text); len(events) > 0 {
			t.Errorf("%s, whole: %+v", name, events)
		}
	}
}

// What is no JSON is content as a whole, unless it went out.
func TestNoJSON(t *testing.T) {
	for name, text := range map[string]string{
		toolcalls.Hermes:  "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": x}}\n</tool_call>",
		toolcalls.Llama3:  `{"name": "f", "parameters": {"a": x}}`,
		toolcalls.Mistral: `[TOOL_CALLS]f[ARGS]{"a": x}`,
	} {
		format, _ := toolcalls.Of(name, "")
		if got := parse(t, format.NewParser([]string{"f"}, true), text); got.Content != text || len(got.Calls) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
		got := parse(t, format.NewParser([]string{"f"}, false), strings.Split(text, "")...)
		if len(got.Calls) != 1 || !strings.HasPrefix(got.Calls[0][1], `{"a": `) || !strings.HasPrefix(got.Content, "}") && got.Content != "x}" {
			t.Errorf("%s, in pieces: %+v", name, got)
		}
	}
}

// Whatever comes, however it is cut: the same is said; arguments of calls that ended are JSON
// objects; and nothing but the syntax of calls is lost.
func fuzz(f *testing.F, name string) {
	for _, c := range transcripts(f) {
		if c.Format == name {
			f.Add(c.Text, 3)
		}
	}
	format, _ := toolcalls.Of(name, "")
	f.Fuzz(func(t *testing.T, text string, size int) {
		for _, how := range []struct{ whole, single bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
			whole := how.whole
			parser := func() *toolcalls.Parser {
				p := format.NewParser(functions, whole)
				if how.single {
					p.Single()
				}
				return p
			}
			p := parser()
			var once said
			once.Calls = [][2]string{}
			ended := map[int]bool{}
			events := slices.Concat(p.Add(text), p.Finish())
			once.take(t, events)
			for _, e := range events {
				ended[e.Call] = ended[e.Call] || e.Kind == toolcalls.End
			}
			for i, call := range once.Calls {
				if !ended[i] {
					t.Errorf("call %d does not end", i)
				}
				if whole && !json.Valid([]byte(call[1])) && !strings.HasSuffix(text, call[1]) {
					t.Errorf("arguments %q are no JSON", call[1])
				}
			}
			if how.single && p.Calls() > 1 {
				t.Errorf("%d calls, though one is read at most", p.Calls())
			}
			if len(once.Calls) == 0 && once.Content != text {
				t.Errorf("%q became %q", text, once.Content)
			}
			var pieces []string
			for rest := text; rest != ""; {
				n := min(len(rest), max(1, size%17))
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			if diff := cmp.Diff(once, parse(t, parser(), pieces...)); diff != "" {
				t.Errorf("%+v, %q in pieces (-once +pieces):\n%s", how, text, diff)
			}
		}
	})
}

func FuzzHermes(f *testing.F)  { fuzz(f, toolcalls.Hermes) }
func FuzzLlama3(f *testing.F)  { fuzz(f, toolcalls.Llama3) }
func FuzzMistral(f *testing.F) { fuzz(f, toolcalls.Mistral) }

// Ids of calls are told apart, and have the shape that templates ask for.
func TestCallIDs(t *testing.T) {
	for _, name := range toolcalls.Names() {
		format, _ := toolcalls.Of(name, "")
		seen := map[string]bool{}
		for seed := range 50 {
			for call := range 50 {
				id := format.CallID(fmt.Sprint("seed", seed), call)
				if seen[id] || name == toolcalls.Mistral && len(id) != 9 || name != toolcalls.Mistral && !strings.HasPrefix(id, "call_") {
					t.Fatalf("%s: id %q", name, id)
				}
				seen[id] = true
			}
		}
		if !seen[format.CallID("seed1", 1)] {
			t.Errorf("%s: an id changes", name)
		}
	}
}

// A long call that is not streamed is not copied again with each of its tokens, and neither is space.
func TestLongCallsAreNotCopied(t *testing.T) {
	for name, text := range map[string]string{
		toolcalls.Hermes:  "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"" + strings.Repeat("long", 50_000) + "\"}}\n</tool_call>",
		toolcalls.Mistral: "[TOOL_CALLS]f[ARGS]{\"a\": \"" + strings.Repeat("long", 50_000) + "\"}",
		toolcalls.Llama3:  `{"name": "f", "parameters": {"a": "` + strings.Repeat("long", 50_000) + `"}}`,
		"space":           "a" + strings.Repeat(" \n\n ", 50_000) + "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
	} {
		format, known := toolcalls.Of(name, "")
		if !known {
			format, _ = toolcalls.Of(toolcalls.Hermes, "")
		}
		p := format.NewParser([]string{"f"}, true)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for len(text) > 0 {
			n := min(4, len(text))
			p.Add(text[:n])
			text = text[n:]
		}
		p.Finish()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 10<<20 || p.Calls() != 1 {
			t.Errorf("%s: %d MiB are allocated for %d calls", name, took>>20, p.Calls())
		}
	}
}
