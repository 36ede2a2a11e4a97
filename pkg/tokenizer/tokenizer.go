package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// FileName is the name of the file that Open reads in a model's directory.
const FileName = "tokenizer.json"

// maxFileBytes bounds what Open reads. The largest known files, of vocabularies of
// a quarter of a million tokens, are near 35 MB.
const maxFileBytes = 512 << 20

// ErrTooLong is in the chain of the error that EncodeContext returns for a text
// that has more tokens than the caller wants.
var ErrTooLong = errors.New("text has too many tokens")

// Tokenizer is one model's tokenizer. It is immutable; all its methods may be
// called by many goroutines at once.
type Tokenizer struct {
	ids        map[string]int32 // by content as the file spells it, added tokens included
	special    map[int32]bool
	pieces     pieceTable // what decoding makes of each token by itself
	stages     []stage
	model      bpe
	raw        *addedSet // added tokens looked for in the text as it is
	late       *addedSet // those with normalized: looked for in what is left
	template   template
	normalizer normalizer
	decoder    decoder
	workspaces sync.Pool // *workspace
	// longestToken is the most bytes of normalized text that one token stands for,
	// were it not for added tokens that swallow white space too and Splits that
	// remove some.
	longestToken int
	swallows     bool
	unbounded    bool // a run of characters or bytes without symbols is one token, or none
}

// Open reads dir/tokenizer.json. An error names the file and, in it, the component
// that is wrong or not implemented, or says what to do where there is none.
func Open(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, FileName)
	data, err := boundedfile.Read(path, maxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: there is no tokenizer: fetch %s of the same checkpoint into this directory", dir, FileName)
	case err != nil:
		return nil, fmt.Errorf("open tokenizer: %w", err)
	}
	t, err := Parse(data)
	switch {
	case err != nil && bytes.HasPrefix(data, []byte("version https://git-lfs")):
		return nil, fmt.Errorf("%s: %s is a Git LFS pointer, not the file: run git lfs pull in the checkpoint's repository", dir, FileName)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// VocabSize is the highest id plus one, added tokens included. It may be less than
// the rows of a model's embedding, which are often padded.
func (t *Tokenizer) VocabSize() int { return t.pieces.size() }

// TokenID looks a token up by its content as tokenizer.json spells it: added tokens
// as they are ("<|end_of_text|>"), others in the byte alphabet ("Ġthe").
func (t *Tokenizer) TokenID(content string) (id int32, ok bool) {
	id, ok = t.ids[content]
	return id, ok
}

// IsSpecial says whether id is an added token marked special: one that structures
// a prompt and is no part of its text. False for ids that do not exist.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.special[id] }
