package tokenizer

// Splitter cuts text as one of the known patterns does.
func Splitter(pattern string) func(text string) []string {
	scan := scannerFor(pattern, newClasses())
	return func(text string) []string {
		pieces := []string{}
		for i := 0; i < len(text); {
			end := scan(text, i)
			pieces = append(pieces, text[i:end])
			i = end
		}
		return pieces
	}
}

// Patterns are the regular expressions that are known.
var Patterns = []string{patternLlama3, patternTiktoken, patternQwen2, patternGPT2, patternGPT2Tiktoken, patternTekken, patternO200k}

// ShortPiece is the length, in bytes, at which the way of merging changes.
const ShortPiece = shortPiece
