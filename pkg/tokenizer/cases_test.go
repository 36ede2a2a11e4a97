package tokenizer_test

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

const fableDir = "../../models/fable"

func openFable(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Open(fableDir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type exactCase struct {
	Text       string  `json:"text"`
	AddSpecial bool    `json:"add_special_tokens"`
	IDs        []int32 `json:"token_ids"`
}

func readCases(t testing.TB) []exactCase {
	t.Helper()
	f, err := os.Open(fableDir + "/tokenizer_cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases []exactCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c exactCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("no cases")
	}
	return cases
}

// The encodings that an independent implementation made.
func TestExactCases(t *testing.T) {
	tok := openFable(t)
	for _, c := range readCases(t) {
		if got := tok.Encode(c.Text, c.AddSpecial); !slices.Equal(got, c.IDs) {
			t.Errorf("Encode(%q, %t)\n got %v\nwant %v", c.Text, c.AddSpecial, got, c.IDs)
		}
		want := c.Text
		if c.AddSpecial {
			want = "<|begin_of_text|>" + want
		}
		if got := tok.Decode(c.IDs, false); got != want {
			t.Errorf("Decode(%v) = %q, want %q", c.IDs, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := openFable(t)
	cases := readCases(t)
	long := strings.Repeat("once", 100) // takes the long way, with its shared scratch memory
	want := tok.Encode(long, false)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for _, c := range cases {
				if got := tok.Encode(c.Text, c.AddSpecial); !slices.Equal(got, c.IDs) {
					t.Errorf("Encode(%q) = %v, want %v", c.Text, got, c.IDs)
				}
				if got := tok.Encode(long, false); !slices.Equal(got, want) {
					t.Errorf("Encode(%q) = %v, want %v", long, got, want)
				}
			}
		})
	}
	workers.Wait()
}

func TestLookUps(t *testing.T) {
	tok := openFable(t)
	if got := tok.VocabSize(); got != 4096 {
		t.Errorf("VocabSize() = %d, want 4096", got)
	}
	for content, want := range map[string]int32{"!": 0, "Ġthe": 259, "<|begin_of_text|>": 4093, "<|pad|>": 4095} {
		if got, ok := tok.TokenID(content); !ok || got != want {
			t.Errorf("TokenID(%q) = %d, %t; want %d", content, got, ok, want)
		}
	}
	if id, ok := tok.TokenID("no such token"); ok {
		t.Errorf("TokenID of an unknown token = %d", id)
	}
	for id, want := range map[int32]bool{-1: false, 0: false, 4092: false, 4093: true, 4095: true, 4096: false} {
		if got := tok.IsSpecial(id); got != want {
			t.Errorf("IsSpecial(%d) = %t", id, got)
		}
	}
	if got := tok.Encode("", false); got == nil || len(got) != 0 {
		t.Errorf("Encode of nothing = %#v, want an empty slice", got)
	}
}
