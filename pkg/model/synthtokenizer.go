package model

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Special tokens of synthetic models.
const (
	bosText = "<|begin_of_text|>"
	eosText = "<|end_of_text|>"
)

// letters is the alphabet of synthetic merges, the most frequent of English
// first, so that a small vocabulary gets the pairs that texts have.
const letters = "etaoinshrdlcumwfgypbvkjxqz"

// maxSynthMerges is how many merges synthMerges has at most: pairs of letters
// and a space with a letter, three letters, a space with three, four letters.
const maxSynthMerges = len(letters) + len(letters)*len(letters) + 2*len(letters)*len(letters)*len(letters) +
	len(letters)*len(letters)*len(letters)*len(letters)

// synthMerges gives the first n merges of a byte-level BPE that nobody trained:
// every combination of up to four lower-case letters, with and without a space
// before, frequent letters first. Each merge joins two tokens that are there
// already into one that no other merge makes, so every id decodes to a text of
// its own. A text comes out as two to three letters a token.
func synthMerges(n int) [][2]string {
	const space = "Ġ" // how byte-level BPE writes a space
	merges := make([][2]string, 0, n)
	add := func(left, right string) bool {
		if len(merges) < n {
			merges = append(merges, [2]string{left, right})
		}
		return len(merges) < n
	}
	one := func(i int) string { return letters[i : i+1] }
	two := func(i, j int) string { return one(i) + one(j) }
	for _, level := range []struct {
		letters int
		join    func(at []int) (left, right string)
	}{
		{1, func(at []int) (string, string) { return space, one(at[0]) }},
		{2, func(at []int) (string, string) { return one(at[0]), one(at[1]) }},
		{3, func(at []int) (string, string) { return two(at[0], at[1]), one(at[2]) }},
		{3, func(at []int) (string, string) { return space + one(at[0]), two(at[1], at[2]) }},
		{4, func(at []int) (string, string) { return two(at[0], at[1]), two(at[2], at[3]) }},
	} {
		more := true
		for sum := 0; more && sum <= level.letters*(len(letters)-1); sum++ {
			more = withSum(make([]int, 0, level.letters), level.letters, sum, func(at []int) bool { return add(level.join(at)) })
		}
	}
	return merges
}

// withSum visits all lists of count indices into letters that add up to sum, in
// lexical order, until visit returns false.
func withSum(prefix []int, count, sum int, visit func([]int) bool) bool {
	most := len(letters) - 1
	if count == 1 {
		return sum > most || visit(append(prefix, sum))
	}
	for i := max(0, sum-(count-1)*most); i <= min(sum, most); i++ {
		if !withSum(append(prefix, i), count-1, sum-i, visit) {
			return false
		}
	}
	return true
}

// byteSymbols is the alphabet of byte-level BPE, in GPT-2's order: printable
// bytes stand for themselves, the others for code points from 256 on.
func byteSymbols() []string {
	printable := func(b int) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae }
	symbols := make([]string, 0, 256)
	for b := range 256 {
		if printable(b) {
			symbols = append(symbols, string(rune(b)))
		}
	}
	for next := rune(256); len(symbols) < 256; next++ {
		symbols = append(symbols, string(next))
	}
	return symbols
}

// The parts of tokenizer.json that are the same for every vocabulary.
const (
	synthPreTokenizer = `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`
	synthDecoder      = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
)

// object is a JSON object that keeps no order; encoding/json sorts its keys.
type object map[string]any

// synthTokenizer is the tokenizer.json of a shape: 256 bytes, synthMerges, and
// the start and end tokens as the last two ids.
func synthTokenizer(s Shape) ([]byte, error) {
	merges := synthMerges(s.VocabSize - 256 - 2)
	vocab := make(map[string]int, s.VocabSize)
	for _, symbol := range byteSymbols() {
		vocab[symbol] = len(vocab)
	}
	for _, pair := range merges {
		vocab[pair[0]+pair[1]] = len(vocab)
	}
	if len(vocab) != s.bos() {
		return nil, fmt.Errorf("write tokenizer.json: %d tokens instead of %d", len(vocab), s.bos())
	}
	special := func(id int, text string) object {
		return object{"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	}
	start := func(sequence int) object { return object{"SpecialToken": object{"id": bosText, "type_id": sequence}} }
	text := func(id string, sequence int) object {
		return object{"Sequence": object{"id": id, "type_id": sequence}}
	}
	return encodeJSON(object{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil,
		"added_tokens":  []object{special(s.bos(), bosText), special(s.eos(), eosText)},
		"pre_tokenizer": json.RawMessage(synthPreTokenizer),
		"post_processor": object{
			"type":           "TemplateProcessing",
			"single":         []object{start(0), text("A", 0)},
			"pair":           []object{start(0), text("A", 0), start(1), text("B", 1)},
			"special_tokens": object{bosText: object{"id": bosText, "ids": []int{s.bos()}, "tokens": []string{bosText}}},
		},
		"decoder": json.RawMessage(synthDecoder),
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": vocab, "merges": merges,
		},
	})
}

// synthTemplate makes a prompt of a conversation in the plainest way.
const synthTemplate = `{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`

func synthTokenizerConfig(s Shape) ([]byte, error) {
	return encodeJSON(object{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bosText, "eos_token": eosText,
		"model_max_length": s.ContextTokens, "clean_up_tokenization_spaces": false, "chat_template": synthTemplate,
	})
}

func synthGenerationConfig(s Shape) ([]byte, error) {
	config := object{"bos_token_id": s.bos(), "eos_token_id": s.eos()}
	d := s.Sampling
	if d != (SamplingDefaults{}) {
		config["do_sample"] = true
	}
	for key, value := range map[string]*float32{"temperature": d.Temperature, "top_p": d.TopP, "min_p": d.MinP, "typical_p": d.TypicalP, "repetition_penalty": d.RepetitionPenalty} {
		if value != nil {
			config[key] = *value
		}
	}
	if d.TopK != nil {
		config["top_k"] = *d.TopK
	}
	return encodeJSON(config)
}

// encodeJSON writes "<" as it is: the files are read by people too.
func encodeJSON(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return out.Bytes(), nil
}
