package tokenizer

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// CheckSame checks that the models in two folders have the same tokens: what one says in ids the
// other understands. The error names the first token that differs.
func CheckSame(dir, other string) error {
	if sameFile(dir, other, maxFileBytes) {
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

// sameFile says whether the tokenizers are the same bytes, and not more than so many.
func sameFile(dir, other string, most int64) bool {
	a, err := boundedfile.Read(filepath.Join(dir, FileName), most)
	if err != nil {
		return false
	}
	b, err := boundedfile.Read(filepath.Join(other, FileName), most)
	return err == nil && bytes.Equal(a, b)
}
