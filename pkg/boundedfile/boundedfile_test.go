package boundedfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		most int64
		want string // of the error
	}{
		{path, 6, ""},
		{path, 5, ""},
		{path, 4, "read " + path + ": longer than 4 bytes"},
		{path, 0, "read " + path + ": longer than 0 bytes"},
		{dir, 5, "read " + dir + ": is a directory"},
		{path + "s", 5, "open " + path + "s: no such file or directory"},
	} {
		data, err := boundedfile.Read(c.path, c.most)
		if c.want == "" && (err != nil || string(data) != "12345") || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s, at most %d: %q, %v; want %q", c.path, c.most, data, err, c.want)
		}
		if _, is := errors.AsType[*fs.PathError](err); err != nil && !is {
			t.Errorf("%v is no error of a path", err)
		}
	}
}

func TestReadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	for _, c := range []struct {
		file, want string
		tooLong    bool
	}{
		{" open sesame\r\n", "open sesame", false},
		{"\n", "", false},
		{strings.Repeat("s", 64<<10), strings.Repeat("s", 64<<10), false},
		{strings.Repeat("s", 64<<10) + "\n", "", true},
	} {
		if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := boundedfile.ReadSecret(path)
		if _, tooLong := errors.AsType[*boundedfile.TooLongError](err); got != c.want || tooLong != c.tooLong || err != nil && !tooLong {
			t.Errorf("%d bytes: got %d, %v", len(c.file), len(got), err)
		}
	}
	if _, err := boundedfile.ReadSecret(path + "s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// A pipe says that it has no bytes.
func TestReadPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	if _, err := writer.WriteString("12345"); err != nil {
		t.Fatal(err)
	}
	_, err = boundedfile.Read(path, 4) // which would wait for the end, were it not for the bound
	if long, is := errors.AsType[*boundedfile.TooLongError](err); !is || long.Most != 4 {
		t.Errorf("five bytes of a pipe, at most four: %v", err)
	}
}
