package chat_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
)

// The clock of testdata/expected.py.
func now() time.Time { return time.Date(2026, 3, 7, 9, 5, 4, 0, time.UTC) }

// expected is a line that expected.py wrote.
type expected struct {
	Template     string `json:"template"`
	Conversation string `json:"conversation"`
	Output       string `json:"output"`
	Error        bool   `json:"error"`
}

func readExpected(t *testing.T, file string) []expected {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []expected
	for _, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		var e expected
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// Every construct prints what Jinja2 prints, or is an error where it is one there.
func TestConstructsAreJinja2s(t *testing.T) {
	var snippets struct{ Variables map[string]any }
	data, err := os.ReadFile("testdata/snippets.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &snippets); err != nil {
		t.Fatal(err)
	}
	for _, e := range readExpected(t, "testdata/snippets.jsonl") {
		got, err := renderSource(t, e.Template, chat.Conversation{
			Messages: []chat.Message{{Role: "user"}}, Arguments: snippets.Variables,
		})
		if (err != nil) != e.Error {
			t.Errorf("%s\n\tgives %q, error %v; Jinja2 %q, error %v", e.Template, got, err, e.Output, e.Error)
			continue
		}
		if diff := cmp.Diff(e.Output, got); err == nil && diff != "" {
			t.Errorf("%s\n(-Jinja2 +ours):\n%s", e.Template, diff)
		}
	}
}

func renderSource(t *testing.T, source string, c chat.Conversation) (string, error) {
	t.Helper()
	tokens := map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
	template, err := chat.Parse("test.jinja", source, tokens)
	if err != nil {
		return "", err
	}
	return chat.With(template, jinja.Options{Now: now}).Render(t.Context(), c)
}
