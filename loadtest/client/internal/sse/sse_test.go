package sse_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/client/internal/sse"
)

func events(from io.Reader, limit int) (got []string, err error) {
	r := sse.NewReader(from, limit)
	for {
		data, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, string(data))
	}
}

func TestReader(t *testing.T) {
	cases := []struct {
		name, stream string
		want         []string
	}{
		{"nothing", "", nil},
		{"LF", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"CR", "data: a\r\rdata: b\r\r", []string{"a", "b"}},
		{"mixed", "data: a\r\n\ndata: b\n\r\n\rdata: c\r\r\n", []string{"a", "b", "c"}},
		{"a CR and an LF are one end", "data: a\r\ndata: b\n\n", []string{"a\nb"}},
		{"several lines", "data: YHOO\ndata: +2\ndata: 10\n\n", []string{"YHOO\n+2\n10"}},
		{"one space only is cut", "data:  a\n\ndata:b\n\ndata: \n\n", []string{" a", "b", ""}},
		{"comments", ": keep-alive\n\n:\n: b\ndata: a\n:c\n\n", []string{"a"}},
		{"other fields", "event: error\nid: 7\nretry: 10\ndata: a\nfoo: b\nDATA: c\n data: d\n\n", []string{"a"}},
		{"no data, no event", "event: ping\n\nid\n\n", nil},
		{"data without a colon", "data\n\ndata\ndata\n\ndata:", []string{"", "\n"}},
		{"colons in the value", "data: {\"a\": \"b:c\"}\n\n", []string{`{"a": "b:c"}`}},
		{"no blank line at the end", "data: a\n\ndata: b\n", []string{"a"}},
		{"byte order mark", "\ufeffdata: a\n\n", []string{"a"}},
		{"one mark only", "\ufeff\ufeffdata: a\n\ndata: b\n\n", []string{"b"}},
		{"a mark later is a name's", "data: a\n\n\ufeffdata: b\n\n", []string{"a"}},
		{"not UTF-8", "data: \xff\xfe\n\n", []string{"\xff\xfe"}},
		{"half a mark", "\xef\xbbdata: a\n\ndata: b\n\n", []string{"b"}},
	}
	for _, c := range cases {
		readers := map[string]io.Reader{
			"whole": strings.NewReader(c.stream), "bytes": iotest.OneByteReader(strings.NewReader(c.stream)),
			"halves": iotest.HalfReader(strings.NewReader(c.stream)), "error with data": iotest.DataErrReader(strings.NewReader(c.stream)),
		}
		for how, from := range readers {
			got, err := events(from, 0)
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: ended with %v", c.name, how, err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", c.name, how, diff)
			}
		}
	}
}

// An event is returned at its blank line, without waiting for an LF after CR or for the
// next event.
func TestReaderDoesNotWait(t *testing.T) {
	for _, stream := range []string{"data: a\n\n", "data: a\r\n\r", "data: a\r\r", "data: a\n\r"} {
		r := sse.NewReader(io.MultiReader(strings.NewReader(stream), iotest.ErrReader(errors.New("read on"))), 0)
		if data, err := r.Next(); err != nil || string(data) != "a" {
			t.Errorf("%q: %q, %v", stream, data, err)
		}
	}
}

func TestReaderIsBounded(t *testing.T) {
	const limit = 100
	fits := strings.Repeat("x", limit-len("data:"))
	cases := []struct {
		name, stream string
		want         int
		err          error
	}{
		{"fits", "data:" + fits + "\n\n", 1, io.EOF},
		{"many", strings.Repeat("data:"+fits+"\n\n", 50), 50, io.EOF},
		{"line", "data:" + fits + "x\n\n", 0, sse.ErrTooLong},
		{"endless line", "data:" + strings.Repeat("x", 10*limit), 0, sse.ErrTooLong},
		{"endless comment", ":" + strings.Repeat("x", 10*limit), 0, sse.ErrTooLong},
		{"endless event", strings.Repeat("data:x\n", limit), 0, sse.ErrTooLong},
		{"comments without end", strings.Repeat(": keep-alive\n", 100), 0, io.EOF},
	}
	for _, c := range cases {
		got, err := events(strings.NewReader(c.stream), limit)
		if len(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d events and %v, want %d and %v", c.name, len(got), err, c.want, c.err)
		}
	}
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

func TestReaderErrors(t *testing.T) {
	broken := errors.New("broken")
	r := sse.NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken)), 0)
	if data, err := r.Next(); err != nil || string(data) != "a" {
		t.Fatalf("%q, %v", data, err)
	}
	for range 2 {
		if data, err := r.Next(); !errors.Is(err, broken) {
			t.Fatalf("%q, %v, want the error from below", data, err)
		}
	}
	r.Reset(strings.NewReader("\ufeffdata: c\n\n"))
	if data, err := r.Next(); err != nil || string(data) != "c" {
		t.Fatalf("after Reset: %q, %v", data, err)
	}
	if _, err := sse.NewReader(nothing{}, 0).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Fatalf("%v, want no progress", err)
	}
}

// reference is the standard's algorithm, literally, on a whole stream.
func reference(stream []byte) (events []string) {
	stream = bytes.TrimPrefix(stream, []byte("\ufeff"))
	stream = bytes.ReplaceAll(stream, []byte("\r\n"), []byte("\n"))
	stream = bytes.ReplaceAll(stream, []byte("\r"), []byte("\n"))
	lines := bytes.Split(stream, []byte("\n"))
	data := ""
	for _, line := range lines[:len(lines)-1] {
		if len(line) == 0 {
			if data != "" {
				events = append(events, strings.TrimSuffix(data, "\n"))
			}
			data = ""
			continue
		}
		if line[0] == ':' {
			continue
		}
		name, value, _ := strings.Cut(string(line), ":")
		if name == "data" {
			data += strings.TrimPrefix(value, " ") + "\n"
		}
	}
	return events
}

func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		"data: a\n\n", "data: a\r\rdata\r\n\r\n", "\ufeff: c\ndata: a\ndata: b\n\nid: 1\n\n", "data: {\"a\":\"\u00e9\"}\r\n\r\ndata: [DONE]\n\n",
	} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		want := reference(stream)
		got, err := events(&pieces{stream, int(step%16) + 1}, 0)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if !slices.Equal(want, got) {
			t.Fatalf("%q, want %q", got, want)
		}
		// A small limit yields fewer events, never different ones.
		some, err := events(&pieces{stream, int(step%16) + 1}, 20)
		if !errors.Is(err, io.EOF) && !errors.Is(err, sse.ErrTooLong) || len(some) > len(want) {
			t.Fatalf("%d events of %d, %v", len(some), len(want), err)
		}
		if !slices.Equal(want[:len(some)], some) {
			t.Fatalf("%q, want the first of %q", some, want)
		}
	})
}

// pieces gives n bytes at a time.
type pieces struct {
	rest []byte
	n    int
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.rest[:min(p.n, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}
