package tokenizer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// CheckSame checks that the models in two folders have the same tokens: what one says in ids the
// other understands. The error names the first token that differs.
func CheckSame(dir, other string) error {
	if sameFile(dir, other) {
		return nil
	}
	// Files may be written differently and say the same.
	a, err := Open(dir)
	if err != nil {
		return err
	}
	b, err := Open(other)
	if err != nil {
		return err
	}
	if m, n := a.VocabSize(), b.VocabSize(); m != n {
		return fmt.Errorf("%s has %d tokens and %s has %d: both need the same tokenizer", dir, m, other, n)
	}
	for id := range int32(a.VocabSize()) {
		if x, y := a.TokenBytes(id), b.TokenBytes(id); !bytes.Equal(x, y) || a.IsSpecial(id) != b.IsSpecial(id) {
			return fmt.Errorf("token %d is %q in %s and %q in %s: both need the same tokenizer", id, x, dir, y, other)
		}
	}
	return nil
}

// sameFile says whether the tokenizers are the same bytes.
func sameFile(dir, other string) bool {
	a, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		return false
	}
	b, err := os.ReadFile(filepath.Join(other, FileName))
	return err == nil && bytes.Equal(a, b)
}
