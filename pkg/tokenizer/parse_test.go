package tokenizer_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// metaspaceFirst puts a normalizer before a Metaspace that asks whether a piece was at
// the start of the text.
func metaspaceFirst(normalizer part) func(file) {
	return func(f file) {
		f["normalizer"] = normalizer
		f["pre_tokenizer"] = part{"type": "Sequence", "pretokenizers": []part{
			{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, {"type": "ByteLevel", "use_regex": false},
		}}
	}
}

// What leaves the start of a text where it is may stand before such a Metaspace.
func TestMetaspaceFirstBehindANormalizer(t *testing.T) {
	for _, normalizer := range []part{
		{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "x"}, {"type": "Strip", "strip_left": false, "strip_right": true},
		{"type": "Replace", "pattern": part{"String": "é"}, "content": "ab"},
	} {
		f := newFile()
		metaspaceFirst(normalizer)(f)
		if _, err := tokenizer.Parse(f.json(t)); err != nil {
			t.Errorf("%v: %v", normalizer["type"], err)
		}
	}
}

// bert makes a file of the parts that BERT's has, none of which is supported.
func bert(f file) {
	f["normalizer"] = part{"type": "BertNormalizer", "lowercase": true}
	f["pre_tokenizer"] = part{"type": "BertPreTokenizer"}
	f["post_processor"] = part{"type": "BertProcessing"}
	f["decoder"] = part{"type": "WordPiece", "prefix": "##"}
	f["model"] = part{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": part{"[UNK]": 0}}
}

// t5 does the same for T5's.
func t5(f file) {
	f["normalizer"] = part{"type": "Precompiled", "precompiled_charsmap": "AA=="}
	f["pre_tokenizer"] = part{"type": "Sequence", "pretokenizers": []part{{"type": "WhitespaceSplit"}}}
	f["decoder"] = part{"type": "Metaspace", "replacement": "▁", "add_prefix_space": true}
	f["model"] = part{"type": "Unigram", "unk_id": 0, "vocab": [][]any{{"<unk>", 0.0}}}
}

func TestRefusals(t *testing.T) {
	set := func(keys string, value any) func(file) {
		return func(f file) {
			at := part(f)
			path := strings.Split(keys, ".")
			for _, key := range path[:len(path)-1] {
				at = at[key].(part)
			}
			at[path[len(path)-1]] = value
		}
	}
	sequence := func(parts ...part) part { return part{"type": "Sequence", "pretokenizers": parts} }
	split := func(fields part) part {
		s := part{"type": "Split", "pattern": part{"Regex": tokenizer.Patterns[0]}, "behavior": "Isolated", "invert": false}
		for k, v := range fields {
			s[k] = v
		}
		return s
	}
	longer := part{"type": "Replace", "pattern": part{"String": "a"}, "content": strings.Repeat("a", 16)}
	byteLevel := part{"type": "ByteLevel", "use_regex": false}
	deep := byteLevel
	for range 20 {
		deep = sequence(deep)
	}
	template := func(single any, tokens part) part {
		return part{"type": "TemplateProcessing", "single": single, "pair": []part{}, "special_tokens": tokens}
	}
	textA := part{"Sequence": part{"id": "A", "type_id": 0}}
	start := part{"SpecialToken": part{"id": "<s>", "type_id": 0}}

	for _, c := range []struct {
		name   string
		change func(file)
		want   []string // all of them in the message
	}{
		{"version", set("version", "2.0"), []string{"version", "2.0"}},
		{"unknown part", set("speculator", part{}), []string{`unknown field "speculator"`}},
		{"a text that explodes", set("normalizer", part{"type": "Sequence", "normalizers": []part{longer, longer, longer}}), []string{"normalizer.normalizers[1]", "256 times longer", "more than 64"}},
		{"a text that explodes at once", set("normalizer", part{"type": "Replace", "pattern": part{"Regex": `\s+`}, "content": strings.Repeat("a", 65)}), []string{"normalizer: replaces 1 bytes by 65"}},
		{"a long text before each", set("normalizer", part{"type": "Prepend", "prepend": strings.Repeat("a", 257)}), []string{"normalizer: prepends 257 bytes"}},
		{"a decoder that explodes", set("decoder", part{"type": "Sequence", "decoders": []part{longer, longer, {"type": "Fuse"}}}), []string{"decoder.decoders[1]", "256 times longer"}},
		{"normalizer", set("normalizer", part{"type": "Precompiled", "precompiled_charsmap": "AA=="}), []string{"normalizer: Precompiled is not supported"}},
		{"normalizer inside", set("normalizer", part{"type": "Sequence", "normalizers": []part{{"type": "NFC"}, {"type": "Nmt"}}}), []string{"normalizer.normalizers[1]: Nmt"}},
		{"normalizer with a strange field", set("normalizer", part{"type": "NFC", "prepend": "x"}), []string{"normalizer", `unknown field "prepend"`}},
		{"normalizer with a field in another case", set("normalizer", part{"type": "Prepend", "Prepend": "x"}), []string{"normalizer", `unknown field "Prepend"`}},
		{"replaced pattern", set("normalizer", part{"type": "Replace", "pattern": part{"Regex": "x+"}, "content": " "}), []string{"normalizer: unknown pattern", "x+"}},
		{"Strip before Metaspace first", metaspaceFirst(part{"type": "Sequence", "normalizers": []part{{"type": "NFC"}, {"type": "Strip", "strip_left": true, "strip_right": true}}}),
			[]string{"normalizer.normalizers[1]: Strip of the left", "Metaspace", "first"}},
		{"StripAccents before Metaspace first", metaspaceFirst(part{"type": "StripAccents"}), []string{"normalizer: StripAccents", "Metaspace", "first"}},
		{"deleting before Metaspace first", metaspaceFirst(part{"type": "Replace", "pattern": part{"String": "a"}, "content": ""}), []string{"normalizer: Replace", "Metaspace", "first"}},
		{"replacing before Metaspace first", metaspaceFirst(part{"type": "Replace", "pattern": part{"String": "ab"}, "content": "c"}), []string{"normalizer: Replace", "Metaspace", "first"}},
		{"replacing runs before Metaspace first", metaspaceFirst(part{"type": "Replace", "pattern": part{"Regex": " {2,}"}, "content": " "}), []string{"normalizer: Replace", "Metaspace", "first"}},
		{"replaced with groups", set("normalizer", part{"type": "Replace", "pattern": part{"Regex": " {2,}"}, "content": "$1"}), []string{"normalizer", "$1"}},
		{"replaced nothing", set("normalizer", part{"type": "Replace", "pattern": part{"String": ""}, "content": "x"}), []string{"normalizer", "empty"}},
		{"added token that is normalized away", func(f file) {
			f["normalizer"] = part{"type": "Strip", "strip_left": true, "strip_right": true}
			f.add("  ", part{"normalized": true})
		}, []string{"added_tokens[0]", "normalizer"}},
		{"no model", set("model", nil), []string{"model: missing"}},
		{"other model", set("model.type", "Speculative"), []string{`model: type "Speculative" is not supported`}},
		{"BERT", bert, []string{"model: WordPiece", "BERT", "only BPE"}},
		{"BERT of before models had a type", func(f file) {
			bert(f)
			delete(f.model(), "type")
		}, []string{"model: WordPiece", "BERT", "only BPE"}},
		{"T5", t5, []string{"model: Unigram", "T5", "only BPE"}},
		{"T5 of before models had a type", func(f file) {
			t5(f)
			delete(f.model(), "type")
		}, []string{"model: Unigram", "T5", "only BPE"}},
		{"unknown model field", set("model.temperature", 1), []string{"model:", "temperature"}},
		{"dropout", set("model.dropout", 0.1), []string{"model.dropout: 0.1"}},
		{"prefix", set("model.continuing_subword_prefix", "##"), []string{"continuing_subword_prefix", "##"}},
		{"suffix", set("model.end_of_word_suffix", "</w>"), []string{"end_of_word_suffix", "</w>"}},
		{"vocab is a list", set("model.vocab", []string{"a"}), []string{"model.vocab: want an object"}},
		{"no vocab", set("model.vocab", nil), []string{"model.vocab: want an object"}},
		{"negative id", set("model.vocab.zz", -1), []string{"model.vocab", `"zz"`, "-1"}},
		{"huge id", set("model.vocab.zz", 4<<20), []string{"model.vocab", `"zz"`, "4194304"}},
		{"fractional id", set("model.vocab.zz", 700.5), []string{"model.vocab", `"zz"`, "700.5"}},
		{"id of another", set("model.vocab.zz", 7), []string{"model.vocab", "id 7 belongs to another token"}},
		{"id is an object", set("model.vocab.zz", part{}), []string{"model.vocab", `"zz"`}},
		{"missing byte", func(f file) { delete(f.model()["vocab"].(part), "Ġ") }, []string{`no token "Ġ" for the byte 0x20`}},
		{"missing byte of an assigned character", func(f file) { delete(f.model()["vocab"].(part), symbolOf(0xF3)) }, []string{"for the byte 0xF3"}},
		{"missing byte with byte_fallback", func(f file) {
			delete(f.model()["vocab"].(part), symbolOf(0xF1))
			f.model()["byte_fallback"] = true
		}, []string{"for the byte 0xF1", "byte_fallback"}},
		{"missing byte and no unknown token", func(f file) {
			delete(f.model()["vocab"].(part), symbolOf(0xF1))
			f.model()["unk_token"] = "<none>"
		}, []string{"model.unk_token", "<none>"}},
		{"no merges", set("model.merges", nil), []string{"model.merges: missing"}},
		{"merge of one", set("model.merges", []string{"ab"}), []string{`model.merges: "ab" is not two tokens`}},
		{"merge of three", set("model.merges", []string{"a b c"}), []string{`model.merges: "a b c"`}},
		{"merge of a list of three", set("model.merges", [][]string{{"a", "b", "c"}}), []string{`["a","b","c"] is not a pair`}},
		{"merge of numbers", set("model.merges", []int{1}), []string{"1 is not a pair"}},
		{"unknown left part", set("model.merges", []string{"xx b"}), []string{`model.merges[0]: "xx" of the merge "xx" "b"`}},
		{"unknown right part", set("model.merges", []string{"a yy"}), []string{`model.merges[0]: "yy" of the merge "a" "yy"`}},
		{"unknown result", set("model.merges", []string{"a b"}), []string{`"ab", the result of the merge "a" "b"`}},

		{"added twice", func(f file) { f.add("<x>", nil).add("<x>", nil) }, []string{"added_tokens[1]", "twice"}},
		{"added with a taken id", func(f file) { f.add("<x>", part{"id": 5}) }, []string{"added_tokens[0]", "id 5 belongs"}},
		{"added with two ids", func(f file) { f.add("a", nil) }, []string{"added_tokens[0]", "1000", "97"}},
		{"added with a negative id", func(f file) { f.add("<x>", part{"id": -2}) }, []string{"added_tokens[0]", "-2"}},
		{"added without content", func(f file) { f.add("", nil) }, []string{"added_tokens[0]: empty"}},
		{"added with something unknown", func(f file) { f.add("<x>", part{"fuzzy": true}) }, []string{"added_tokens", "fuzzy"}},

		{"other pre-tokenizer", set("pre_tokenizer", sequence(part{"type": "BertPreTokenizer"})), []string{"pre_tokenizer.pretokenizers[0]: BertPreTokenizer is not supported"}},
		{"Digits behind ByteLevel", set("pre_tokenizer", sequence(byteLevel, part{"type": "Digits"})), []string{"pre_tokenizer.pretokenizers[1]", "Digits"}},
		{"Metaspace of a word", set("pre_tokenizer", part{"type": "Metaspace", "replacement": "__"}), []string{"pre_tokenizer: replacement", "__"}},
		{"Metaspace of another scheme", set("pre_tokenizer", part{"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}), []string{"prepend_scheme", "last"}},
		{"Metaspace that contradicts itself", set("pre_tokenizer", part{"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}), []string{"contradicts"}},
		{"unknown token that is not there", func(f file) {
			f["pre_tokenizer"] = nil
			f.model()["unk_token"] = "<none>"
		}, []string{"model.unk_token", "<none>"}},
		{"pre-tokenizer without a type", set("pre_tokenizer", part{}), []string{"pre_tokenizer", "without a type"}},
		{"unknown pattern", set("pre_tokenizer", sequence(split(part{"pattern": part{"Regex": `\w+`}}), byteLevel)), []string{"pre_tokenizer.pretokenizers[0]: unknown pattern", `\\w+`}},
		{"empty pattern", set("pre_tokenizer", sequence(split(part{"pattern": part{"String": ""}}), byteLevel)), []string{"pre_tokenizer.pretokenizers[0]", "empty"}},
		{"other behavior", set("pre_tokenizer", sequence(split(part{"behavior": "Kept"}), byteLevel)), []string{"behavior", "Kept", "not supported"}},
		{"ByteLevel first", set("pre_tokenizer", sequence(byteLevel, split(nil))), []string{"pretokenizers[1]: Split after ByteLevel"}},
		{"too deep", set("pre_tokenizer", deep), []string{"nested more than"}},

		{"other post-processor", set("post_processor", part{"type": "BertProcessing"}), []string{"post_processor: BertProcessing"}},
		{"other post-processor inside", set("post_processor", part{"type": "Sequence", "processors": []part{{"type": "RobertaProcessing"}}}), []string{"post_processor.processors[0]: RobertaProcessing"}},
		{"template names nothing", set("post_processor", template([]part{start, textA}, part{})), []string{"post_processor.single[0]", `"<s>" is not in special_tokens`}},
		{"template with an unknown id", set("post_processor", template([]part{start, textA}, part{"<s>": part{"id": "<s>", "ids": []int{999}, "tokens": []string{"<s>"}}})), []string{"id 999"}},
		{"template without the text", set("post_processor", template([]part{}, part{})), []string{"0 times"}},
		{"template with the text twice", set("post_processor", template([]part{textA, textA}, part{})), []string{"2 times"}},
		{"template with a second text", set("post_processor", template([]part{{"Sequence": part{"id": "B", "type_id": 0}}}, part{})), []string{`Sequence "B"`}},
		{"template with a strange piece", set("post_processor", template([]part{{}}, part{})), []string{"single[0]: want"}},

		{"no decoder", set("decoder", nil), []string{"decoder: null"}},
		{"other decoder inside", set("decoder", part{"type": "Sequence", "decoders": []part{{"type": "Fuse"}, {"type": "CTC"}}}), []string{"decoder.decoders[1]: CTC"}},
		{"ByteFallback behind Fuse", set("decoder", part{"type": "Sequence", "decoders": []part{{"type": "Fuse"}, {"type": "ByteFallback"}}}), []string{"decoder.decoders[1]: ByteFallback after Fuse"}},
		{"ByteLevel behind ByteFallback", set("decoder", part{"type": "Sequence", "decoders": []part{{"type": "ByteFallback"}, {"type": "ByteLevel"}}}), []string{"decoder.decoders[1]: ByteLevel after"}},
		{"Replace by a regular expression", set("decoder", part{"type": "Replace", "pattern": part{"Regex": "a"}, "content": ""}), []string{"decoder: the pattern must be a String"}},
		{"Strip of a word", set("decoder", part{"type": "Strip", "content": "ab", "start": 1, "stop": 0}), []string{"decoder: want content of one character"}},
		{"Strip without bound", set("decoder", part{"type": "Strip", "content": "a", "start": 0, "stop": 1 << 30}), []string{"decoder: want"}},
		{"other decoder", set("decoder", part{"type": "WordPiece"}), []string{"decoder: WordPiece"}},
		{"wrong type", set("added_tokens", 3), []string{"added_tokens", "number"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFile()
			c.change(f)
			_, err := tokenizer.Parse(f.json(t))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestMalformedJSON(t *testing.T) {
	longtest.OneGoroutine(t)
	whole := string(newFile().json(t))
	for name, c := range map[string]struct{ data, want string }{
		"nothing":          {"", "offset 0: the file is incomplete: fetch it again"},
		"cut off":          {whole[:100], "offset 100"},
		"stray":            {`{"version":!}`, "the file is damaged: fetch it again"},
		"a list":           {"[]", "unexpected array in place of an object"},
		"two values":       {whole + "{}", "data after the value"},
		"not UTF-8":        {`{"version":"` + "\xff" + `"}`, "not UTF-8 at offset 12"},
		"a high surrogate": {`{"version":"` + "\\ud83d\\u0041" + `"}`, "half a surrogate pair at offset 12"},
		"a low surrogate":  {`{"version":"\\` + "\\udc4d" + `"}`, "half a surrogate pair at offset 14"},
		"a whole pair":     {`{"version":"\\u` + "\\ud83d\\udc4d" + `"}`, "👍"},
		"twice":            {strings.Replace(whole, `"vocab":{`, `"vocab":{"a":97,`, 1), `"a" is there twice`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tokenizer.Parse([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not say %q", err, c.want)
			}
		})
	}
}

// What is accepted because it has no effect, and what older files leave out.
func TestAccepted(t *testing.T) {
	for name, change := range map[string]func(file){
		"empty affixes": func(f file) {
			f.model()["continuing_subword_prefix"], f.model()["end_of_word_suffix"] = "", ""
		},
		"an unknown token that no byte needs": func(f file) {
			f.model()["unk_token"], f.model()["fuse_unk"], f.model()["byte_fallback"] = "<unk>", true, true
		},
		"dropout of nothing":     func(f file) { f.model()["dropout"] = 0.0 },
		"a model without a type": func(f file) { delete(f.model(), "type") },
		"truncation and padding": func(f file) { f["truncation"], f["padding"] = part{"max_length": 1}, part{"strategy": "x"} },
		"no version":             func(f file) { delete(f, "version") },
		"a ByteLevel processor":  func(f file) { f["post_processor"] = part{"type": "ByteLevel", "trim_offsets": false} },
		"a ByteLevel's fields in a template": func(f file) {
			f["post_processor"] = part{
				"type": "TemplateProcessing", "add_prefix_space": true, "trim_offsets": false, "use_regex": true,
				"single": []part{{"Sequence": part{"id": "A", "type_id": 0}}}, "pair": []part{}, "special_tokens": part{},
			}
		},
		"no byte that is never in UTF-8": func(f file) {
			for _, b := range []byte{0xC0, 0xC1, 0xF5, 0xFF} {
				delete(f.model()["vocab"].(part), symbolOf(b))
			}
		},
		"no added tokens":         func(f file) { delete(f, "added_tokens") },
		"a gap between the ids":   func(f file) { f.add("<x>", part{"id": 5000}) },
		"an added token in vocab": func(f file) { f.add("a", part{"id": 'a'}) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile()
			change(f)
			if got := f.parse(t).Encode("abé", true); !slices.Equal(got, []int32{'a', 'b', 0xC3, 0xA9}) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTemplates(t *testing.T) {
	wrap := func(name string, ids ...int) part {
		tokens := part{name: part{"id": name, "ids": ids, "tokens": []string{name}}}
		special := part{"SpecialToken": part{"id": name, "type_id": 0}}
		text := part{"Sequence": part{"id": "A", "type_id": 0}}
		return part{"type": "TemplateProcessing", "single": []part{special, text, special}, "pair": []part{}, "special_tokens": tokens}
	}
	f := newFile()
	f["post_processor"] = part{"type": "Sequence", "processors": []part{{"type": "ByteLevel"}, wrap("in", 1), wrap("out", 2, 3)}}
	tok := f.parse(t)
	if got := tok.Encode("a", true); !slices.Equal(got, []int32{2, 3, 1, 'a', 1, 2, 3}) {
		t.Errorf("got %v", got)
	}
	if got := tok.Encode("a", false); !slices.Equal(got, []int32{'a'}) {
		t.Errorf("got %v", got)
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := tokenizer.Open(dir); err == nil || !strings.Contains(err.Error(), tokenizer.FileName) {
		t.Errorf("error of an absent file: %v", err)
	}
	path := filepath.Join(dir, tokenizer.FileName)
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tokenizer.Open(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error of an empty file: %v", err)
	}
}
