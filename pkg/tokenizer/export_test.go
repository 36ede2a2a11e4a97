package tokenizer

// Split cuts text as one of the known patterns does; nil if pattern is not known.
func Split(pattern, text string) []string {
	scan := scannerFor(pattern, newClasses())
	if scan == nil {
		return nil
	}
	pieces := []string{}
	for i := 0; i < len(text); {
		end := scan(text, i)
		pieces = append(pieces, text[i:end])
		i = end
	}
	return pieces
}

// Patterns are the regular expressions that are known.
var Patterns = []string{patternLlama3, patternTiktoken, patternQwen2, patternGPT2, patternGPT2Tiktoken}

// ShortPiece is the length, in bytes, at which the way of merging changes.
const ShortPiece = shortPiece
