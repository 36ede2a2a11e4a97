package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestRecord(t *testing.T) {
	chunks, err := Record(t.Context(), []string{"# a remark", "#! hidden=42", "echo $hidden; echo wrong >&2", "(echo late) &", "#until late"})
	if err != nil {
		t.Fatal(err)
	}
	shown := map[Kind]string{}
	for i, c := range chunks {
		shown[c.Kind] += c.Text
		if i > 0 && c.At < chunks[i-1].At {
			t.Errorf("chunk %d is before the one before it", i)
		}
	}
	for kind, want := range map[Kind]string{
		Remark: "# a remark\n", Typed: "$ echo $hidden; echo wrong >&2\n$ (echo late) &\n", Printed: "42\nwrong\nlate\n",
	} {
		if shown[kind] != want {
			t.Errorf("kind %d: %q, want %q", kind, shown[kind], want)
		}
	}
}

func TestRecordSaysWhichLineFailed(t *testing.T) {
	if _, err := Record(t.Context(), []string{"echo a", "exit 3"}); err == nil || !strings.HasPrefix(err.Error(), "exit 3:") {
		t.Errorf("error %v", err)
	}
}

func TestDraw(t *testing.T) {
	chunks := []Chunk{{Text: "<&>\n\n" + strings.Repeat("x", columns+1)}}
	for range rows {
		chunks = append(chunks, Chunk{At: 1e9, Text: "\nline"})
	}
	picture := Draw(chunks)
	d := xml.NewDecoder(strings.NewReader(picture))
	texts := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "text" {
			texts++
		}
	}
	// The first line, two of the broken one, and the rest.
	if want := 3 + rows; texts != want {
		t.Errorf("%d texts, want %d", texts, want)
	}
	if got := strings.Count(picture, ";0 -"); got != 4 {
		t.Errorf("the lines move up %d times, want 4: %s", got, picture[:600])
	}
}

// Spaces at the ends of a text move what follows, and are not drawn.
func TestDrawSpaces(t *testing.T) {
	picture := Draw([]Chunk{{Text: "tandem"}, {At: 1e9, Text: " up "}, {At: 2e9, Text: "  "}})
	if strings.Count(picture, "<text") != 2 || strings.Contains(picture, space) || !strings.Contains(picture, `<text x="72.8" y="28" textLength="16.8"`) {
		t.Error(picture)
	}
}
