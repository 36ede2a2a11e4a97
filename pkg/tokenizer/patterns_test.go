package tokenizer_test

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// The scanners cut as Python's regex module does, which testdata/patterns.py asked:
// an implementation of the patterns that nobody here wrote.
func TestScannersAgreeWithPython(t *testing.T) {
	longtest.OneGoroutine(t)
	file, err := os.Open("testdata/patterns.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	var patterns []string
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &patterns) != nil {
		t.Fatal("no patterns")
	}
	for _, pattern := range tokenizer.Patterns {
		if !slices.Contains(patterns, pattern) {
			t.Errorf("not asked for: %s", pattern)
		}
	}
	var splitters []func(string) []string
	for _, pattern := range patterns {
		splitters = append(splitters, tokenizer.Splitter(pattern))
	}
	texts := 0
	for lines.Scan() {
		text, cuts := readCuts(t, lines.Bytes())
		texts++
		for i, split := range splitters {
			want := []string{}
			at := 0
			for _, length := range cuts[i] {
				want = append(want, string(text[at:at+length]))
				at += length
			}
			if got := split(string(text)); !slices.Equal(got, want) {
				t.Errorf("%s\ncuts %q\n got %q\nwant %q", patterns[i], string(text), got, want)
			}
		}
	}
	if err := lines.Err(); err != nil || texts < 1000 {
		t.Errorf("%d texts, %v", texts, err)
	}
}

// readCuts reads a text and the lengths of its pieces by each pattern.
func readCuts(t testing.TB, line []byte) (text []rune, cuts [][]int) {
	t.Helper()
	var fields []json.RawMessage
	var content string
	var lengths []json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil || len(fields) != 2 ||
		json.Unmarshal(fields[0], &content) != nil || json.Unmarshal(fields[1], &lengths) != nil {
		t.Fatalf("%s: %v", line, err)
	}
	for _, raw := range lengths {
		var own []int
		var same int
		if json.Unmarshal(raw, &same) == nil {
			own = cuts[same]
		} else if err := json.Unmarshal(raw, &own); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		cuts = append(cuts, own)
	}
	return []rune(content), cuts
}
