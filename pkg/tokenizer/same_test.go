package tokenizer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// Two tokenizers are the same if they say the same, however their files are written.
func TestCheckSame(t *testing.T) {
	const fable = "../../models/fable"
	data, err := os.ReadFile(filepath.Join(fable, tokenizer.FileName))
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, tokenizer.FileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	swapped := func(a, b string) []byte {
		out := bytes.Replace(data, []byte(a), []byte("\x00"), 1)
		out = bytes.Replace(out, []byte(b), []byte(a), 1)
		return bytes.Replace(out, []byte("\x00"), []byte(b), 1)
	}
	for _, c := range []struct {
		name, dir, says string
	}{
		{"itself", fable, ""},
		{"a copy", write(data), ""},
		{"written differently", write(append(bytes.Clone(data), '\n', ' ')), ""},
		{"two tokens swapped", write(swapped(`"§"`, `"¨"`)), "token 100 is "},
		{"none", t.TempDir(), "no tokenizer"},
	} {
		for _, dirs := range [][2]string{{fable, c.dir}, {c.dir, fable}} {
			err := tokenizer.CheckSame(dirs[0], dirs[1])
			if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: error %v, which should say %q", c.name, err, c.says)
			}
		}
	}
}

// A file that Open would refuse is not read to its end.
func TestSameFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, tokenizer.FileName), []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]bool{7: false, 8: true} {
		if got := tokenizer.SameFile(dir, dir, most); got != want {
			t.Errorf("8 bytes where %d are allowed: the same %v", most, got)
		}
	}
}
