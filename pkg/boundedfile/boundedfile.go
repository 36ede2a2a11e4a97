// Package boundedfile reads files that are small unless they are not what they were taken for.
// Any package may import it.
package boundedfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// TooLongError says that there are more than Most bytes.
type TooLongError struct{ Most int64 }

func (e *TooLongError) Error() string { return fmt.Sprintf("longer than %d bytes", e.Most) }

// Read reads a file of at most most bytes. The error is an *os.PathError; if the file is longer,
// of a *TooLongError. A file that says no length, such as a pipe, is bounded as well.
func Read(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := ReadFrom(file, most)
	if _, long := errors.AsType[*TooLongError](err); long {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return data, err
}

// ReadFrom reads the rest of what from has, of at most most bytes; a *TooLongError says that it
// has more.
func ReadFrom(from io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, &TooLongError{most}
	}
	return data, err
}

// mostSecretBytes bounds a file with a secret, such as a password.
const mostSecretBytes = 64 << 10

// ReadSecret reads a file of at most 64 KiB with a secret alone, without the space around it. Its
// errors are those of Read.
func ReadSecret(path string) (string, error) {
	data, err := Read(path, mostSecretBytes)
	return string(bytes.TrimSpace(data)), err
}

// Absent reports whether there is no such file. A link to nowhere is there: what it stands for is missing.
func Absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
