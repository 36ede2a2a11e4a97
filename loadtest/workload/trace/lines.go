package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds a line of a trace. Mooncake's longest, of 126,195 tokens, has 2 KiB.
const maxLine = 1 << 20

// lines reads lines of bounded length and knows where it is.
type lines struct {
	in     *bufio.Reader
	name   string
	number int
	long   []byte
}

func newLines(in *bufio.Reader, name string) *lines { return &lines{in: in, name: name} }

// next is the next line that is not blank, without its end; io.EOF after the last.
// It is valid until the next call.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.read()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

func (l *lines) read() ([]byte, error) {
	l.number++
	line, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = l.long[:0]
		for errors.Is(err, bufio.ErrBufferFull) && len(l.long) <= maxLine {
			l.long = append(l.long, line...)
			line, err = l.in.ReadSlice('\n')
		}
		l.long = append(l.long, line...)
		line = l.long
	}
	if len(line) > maxLine {
		return nil, l.fail(maxLine+1, "the line is longer than 1 MiB: expected one request a line")
	}
	if err != nil && !(errors.Is(err, io.EOF) && len(line) > 0) {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("read %s: %w", l.name, err)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// fail is an error at a column, from 1, of the line read last.
func (l *lines) fail(column int, format string, args ...any) error {
	return &SyntaxError{l.name, l.number, column, fmt.Sprintf(format, args...)}
}
