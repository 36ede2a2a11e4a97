package tokenizer

import "strings"

// TokenBytes is the exact bytes that id stands for inside a text: not always whole
// characters, and the name of a special token. It is nil for ids that no token has.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.pieces.has(id) {
		return nil
	}
	piece := t.pieces.get(id)
	for _, step := range t.decoder.steps {
		switch step.kind {
		case stepFallback:
			if b, ok := byteOf(piece); ok {
				return []byte{b}
			}
		case stepMetaspace:
			piece = strings.ReplaceAll(piece, step.content, " ")
		case stepReplace:
			piece = strings.ReplaceAll(piece, step.content, step.with)
		}
	}
	return []byte(piece)
}
