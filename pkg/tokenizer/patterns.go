package tokenizer

// The regular expressions that are known, by their exact text. Each has a scanner
// written by hand: Go's regexp has no look-ahead, and an expression that merely
// looks like one of these may split differently.
const (
	// Llama 3 and GPT-4 (cl100k_base).
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// The same language as tiktoken spells it. The possessive quantifiers change
	// nothing, for what they refuse to give back could not have matched the rest;
	// \s*[\r\n] ends at the last line break of a run just as \s*[\r\n]+ does.
	patternTiktoken = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
	// Qwen 2: every digit by itself.
	patternQwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// Mistral Nemo (tekken).
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// GPT-4o (o200k_base).
	patternO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// GPT-2; what ByteLevel with use_regex means.
	patternGPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	// The same as tiktoken spells it.
	patternGPT2Tiktoken = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// A scanner returns where the piece of s that starts at i ends; i < len(s), and
// the end is greater than i. All known patterns match at every position, so that
// the pieces cover the text.
type scanner func(s string, i int) int

// scannerFor returns nil for a pattern that is not known.
func scannerFor(pattern string, c *classes) scanner {
	switch pattern {
	case patternLlama3, patternTiktoken:
		return func(s string, i int) int { return c.scanLlama3(s, i, 3) }
	case patternQwen2:
		return func(s string, i int) int { return c.scanLlama3(s, i, 1) }
	case patternTekken, patternO200k:
		cases, digits := newCaseClasses(c), 1
		if pattern == patternO200k {
			digits = 3
		}
		return func(s string, i int) int { return cases.scanCase(s, i, digits, digits == 3) }
	case patternGPT2, patternGPT2Tiktoken:
		return c.scanGPT2
	}
	return nil
}
