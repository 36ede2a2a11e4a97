package tokenizer

// TokenBytes is the exact bytes that id stands for inside a text: not always whole
// characters, and the name of a special token. It is nil for ids that no token has.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.pieces.has(id) {
		return nil
	}
	return []byte(t.pieces.get(id))
}
