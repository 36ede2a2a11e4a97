package tokenizer_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// byteIDs are ids of a newFile vocabulary, where each byte is an id.
func byteIDs(text string) []int32 {
	ids := []int32{}
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	return ids
}

// continuation is what a stream says of ids.
func continuation(s *tokenizer.Stream, ids []int32) string {
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(s.Next(id))
	}
	return text.String() + s.Flush()
}

// stream decodes id by id.
func stream(tok *tokenizer.Tokenizer, ids []int32, skipSpecial bool) []string {
	s := tok.NewStream(skipSpecial)
	texts := []string{}
	for _, id := range ids {
		texts = append(texts, s.Next(id))
	}
	return append(texts, s.Flush())
}

// The replacements are those of Rust's String::from_utf8_lossy, examples from its
// documentation and from section 3.9 of the Unicode standard.
func TestDecodeBytes(t *testing.T) {
	tok := newFile().parse(t)
	for raw, want := range map[string]string{
		"":                                  "",
		"é本👍":                               "é本👍",
		"\xff":                              "\ufffd",
		"a\xc3":                             "a\ufffd",
		"\xc3a":                             "\ufffda",
		"\xe6\x9c":                          "\ufffd",
		"\xe6\x9ca":                         "\ufffda",
		"\xf0\x9f\x91":                      "\ufffd",
		"\xf0\x9f\xf0\x9f\x91\x8d":          "\ufffd👍",
		"\xe2\x82\xe2\x82\xac":              "\ufffd€",
		"\xc0\xaf\xe0\x80\xbf":              "\ufffd\ufffd\ufffd\ufffd\ufffd",
		"\xed\xa0\x80":                      "\ufffd\ufffd\ufffd",
		"\xf4\x91\x92\x93\xffA\x80\xbfB":    "\ufffd\ufffd\ufffd\ufffd\ufffdA\ufffd\ufffdB",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA": "\ufffd\ufffd\ufffd\ufffdA",
		"Hello \xf0\x90\x80World":           "Hello \ufffdWorld",
		"\x00\ufffd":                        "\x00\ufffd",
	} {
		ids := byteIDs(raw)
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("Decode(% x) = %q, want %q", raw, got, want)
		}
		if got := strings.Join(stream(tok, ids, false), ""); got != want {
			t.Errorf("stream of % x = %q, want %q", raw, got, want)
		}
	}
}

// What a stream says is said as early as it is certain, and no earlier.
func TestStreamSaysWhatIsCertain(t *testing.T) {
	tok := newFile([2]string{"a", "\xf0"}, [2]string{"\x9f", "\x91"}).parse(t)
	for _, c := range []struct {
		ids  []int32
		want []string
	}{
		{[]int32{0xF0, 0x9F, 0x91, 0x8D}, []string{"", "", "", "👍", ""}},
		{[]int32{256, 257, 0x8D}, []string{"a", "", "👍", ""}},
		{[]int32{0xF0, 0x9F, 'a'}, []string{"", "", "\ufffda", ""}},
		{[]int32{0xF0, 0xF0, 0x9F}, []string{"", "\ufffd", "", "\ufffd"}},
		{[]int32{0xE0, 0x80}, []string{"", "\ufffd\ufffd", ""}}, // E0 80 begins nothing
		{[]int32{0xED, 0xA0}, []string{"", "\ufffd\ufffd", ""}}, // nor does a surrogate
		{[]int32{0x80, 0xFF, 0xC0}, []string{"\ufffd", "\ufffd", "\ufffd", ""}},
		{[]int32{0xC3, 9999, -1, 0xA9}, []string{"", "", "", "é", ""}}, // no such ids
	} {
		got := stream(tok, c.ids, false)
		if strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("stream of %x = %q, want %q", c.ids, got, c.want)
		}
	}
}

func TestSkipSpecial(t *testing.T) {
	f := newFile().add("<x>", nil).add("<y>", part{"special": false}).add("é z", nil).add("éé", part{"special": false})
	tok := f.parse(t)
	ids := []int32{'a', 1000, 0xC3, 1000, 0xA9, 1001, 1002}
	for skip, want := range map[bool]string{false: "a<x>\ufffd<x>\ufffd<y>é z", true: "aé<y>"} {
		if got := tok.Decode(ids, skip); got != want {
			t.Errorf("Decode(skipSpecial %t) = %q, want %q", skip, got, want)
		}
		if got := strings.Join(stream(tok, ids, skip), ""); got != want {
			t.Errorf("stream(skipSpecial %t) = %q, want %q", skip, got, want)
		}
	}
	// An added token goes through the byte alphabet where that can spell it.
	if got := tok.Decode([]int32{1003}, false); got != "\ufffd\ufffd" {
		t.Errorf("got %q", got)
	}
}

func TestStreamIsDecode(t *testing.T) {
	longtest.OneGoroutine(t)
	tok := openFable(t)
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		ids := make([]int32, r.IntN(40))
		for i := range ids {
			ids[i] = r.Int32N(4200) - 50 // ids that do not exist, too
			if r.IntN(2) == 0 {
				ids[i] = 94 + r.Int32N(162) // a byte by itself
			}
		}
		for _, skip := range []bool{false, true} {
			whole, parts := tok.Decode(ids, skip), stream(tok, ids, skip)
			if strings.Join(parts, "") != whole {
				t.Fatalf("%v: the stream is %q, decoded it is %q", ids, parts, whole)
			}
			for _, part := range parts {
				if !utf8.ValidString(part) {
					t.Fatalf("%v: %q is not UTF-8", ids, part)
				}
			}
		}
	}
}

func TestStreamMayBeUsedAgain(t *testing.T) {
	tok := newFile().parse(t)
	s := tok.NewStream(false)
	for range 2 {
		if got := s.Next(0xE6) + s.Next(0x9C) + s.Next(0xAC) + s.Next(0xE6) + s.Flush(); got != "本\ufffd" {
			t.Errorf("got %q", got)
		}
	}
	if got := s.Flush(); got != "" {
		t.Errorf("a second Flush says %q", got)
	}
}
