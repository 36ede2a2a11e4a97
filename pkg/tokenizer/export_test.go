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

// SameFile says whether the tokenizers in two folders are the same bytes, and not more than so many.
func SameFile(dir, other string, most int64) bool { return sameFile(dir, other, most) }

// ShortPiece is the length, in bytes, at which the way of merging changes.
const ShortPiece = shortPiece

// LongPiece is the length, in symbols, at which it changes again.
const LongPiece = longPiece

// MergeInEachWay merges the symbols of text with one heap, and with a queue for each
// rank, whatever their number.
func (t *Tokenizer) MergeInEachWay(text string) (heap, queues []int32) {
	symbols, _ := t.model.symbols.appendTo(nil, text, carryOn)
	heap, _ = new(heapMerger).append([]int32{}, symbols, &t.model.merges, carryOn)
	queues, _ = new(queueMerger).append([]int32{}, symbols, &t.model.merges, carryOn)
	return heap, queues
}

// Form is a normal form.
func Form(name string) func(string) string {
	form := newUnicodeForm(name)
	return func(s string) string {
		s, _ = form.apply(s, carryOn)
		return s
	}
}
