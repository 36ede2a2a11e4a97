package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds a line. Mooncake's longest, of 126,195 tokens, has 2 KiB.
const maxLine = 1 << 20

// lines reads lines of bounded length and tracks its position.
type lines struct {
	in     *bufio.Scanner
	name   string
	number int
}

func newLines(in io.Reader, name string) *lines {
	l := &lines{in: bufio.NewScanner(in), name: name}
	l.in.Buffer(nil, maxLine)
	return l
}

// next returns the next nonblank line, without its terminator, valid until the next call;
// io.EOF at the end.
func (l *lines) next() ([]byte, error) {
	for {
		l.number++
		if !l.in.Scan() || l.in.Err() != nil { // an error may follow a partial line
			break
		}
		if line := l.in.Bytes(); len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
	switch err := l.in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, l.fail(maxLine+1, "the line is longer than 1 MiB: expected one request a line")
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", l.name, err)
	}
	return nil, io.EOF
}

// fail returns an error at a column, from 1, of the last line.
func (l *lines) fail(column int, format string, args ...any) error {
	return &SyntaxError{l.name, l.number, column, fmt.Sprintf(format, args...)}
}
