// Package trace reads recorded traffic of real services: when requests came, how
// long they were, what they shared or said.
//
// Package workload imports it. It starts no goroutines. A trace is read as a
// stream: memory does not grow with the file.
//
// The formats, and where users find such files:
//
//	azure     CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens:
//	          github.com/Azure/AzurePublicDataset (Patel et al., "Splitwise", ISCA '24)
//	mooncake  JSON lines with timestamp (ms), input_length, output_length and
//	          hash_ids, one for each 512 tokens of the prompt:
//	          github.com/kvcache-ai/Mooncake (Qin et al., "Mooncake", FAST '25)
//	sharegpt  a JSON array, or JSON lines, of {id, conversations: [{from, value}]}:
//	          the form in which conversations shared from chat services circulate
package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Format names a form of trace.
type Format string

// The formats.
const (
	// Auto tells the format by the file's name and first bytes.
	Auto     Format = "auto"
	Azure    Format = "azure"
	Mooncake Format = "mooncake"
	ShareGPT Format = "sharegpt"
)

// Timed reports whether a trace of this format says when requests came.
func (f Format) Timed() bool { return f == Azure || f == Mooncake }

// BlockTokens is how many tokens of a prompt one of Mooncake's hash ids stands for.
const BlockTokens = 512

// Entry is one request of a trace, or one conversation of ShareGPT form.
type Entry struct {
	// At is when it came, since the first entry; 0 where the format has no times.
	At time.Duration
	// PromptTokens and OutputTokens are its lengths; 0 in ShareGPT form, whose texts
	// have lengths of their own.
	PromptTokens, OutputTokens int
	// Blocks are the hash ids of the prompt, one for each BlockTokens tokens: equal
	// ids stand for equal tokens. The last may be partial. Nil if there are none.
	Blocks []uint64
	// System is the system prompt of a conversation; empty if it has none.
	System string
	// Turns are the conversation; nil in the other formats.
	Turns []Turn
}

// Turn is what a user said and what was answered.
type Turn struct {
	User, Reply string
}

// Reader gives the entries of a trace, oldest first. It is used by one goroutine.
type Reader interface {
	// Next is the entry after the last; io.EOF at the end; a *SyntaxError where the
	// trace is not what its format says. After an error there is no going on. The
	// caller owns the entry.
	Next() (Entry, error)
	// Format is what the trace turned out to be.
	Format() Format
}

// SyntaxError is a place in a trace that cannot be read.
type SyntaxError struct {
	// File, Line and Column are where; lines and columns count from 1, columns in
	// bytes.
	File         string
	Line, Column int
	// Problem says what is there and what was expected.
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// File is a trace in a file that is open.
type File struct {
	Reader
	file *os.File
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Open begins to read a trace. It is opened once to see what it is and again to be
// read, for each run anew, which a pipe cannot be.
func Open(path string, format Format) (*File, error) {
	if about, err := os.Stat(path); err == nil && !about.Mode().IsRegular() {
		return nil, fmt.Errorf("open the trace: %s is not a regular file: save the trace to one first", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the trace: %w", err)
	}
	reader, err := NewReader(file, path, format)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &File{reader, file}, nil
}

// sniffed is how much of a trace's beginning its format is told by.
const sniffed = 4096

// NewReader reads a trace from r. Name stands in errors, and its extension helps
// Auto.
func NewReader(r io.Reader, name string, format Format) (Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	if head, err := buffered.Peek(3); err == nil && bytes.Equal(head, []byte("\ufeff")) {
		_, _ = buffered.Discard(3) // just peeked at
	}
	if format == Auto || format == "" {
		head, err := buffered.Peek(sniffed)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if format = detect(head, name); format == "" {
			return nil, &SyntaxError{name, 1, 1, `cannot tell the format: expected a CSV header "TIMESTAMP,ContextTokens,GeneratedTokens" (azure), lines of {"timestamp": …, "input_length": …} (mooncake), or an array of {"conversations": […]} (sharegpt)`}
		}
	}
	switch format {
	case Azure:
		return newAzure(newLines(buffered, name))
	case Mooncake:
		return &mooncake{lines: newLines(buffered, name)}, nil
	case ShareGPT:
		return &shareGPT{objects: &objects{in: buffered, name: name, line: 1, column: 1}}, nil
	default:
		return nil, fmt.Errorf("%q is not a trace format: choose auto, azure, mooncake or sharegpt", format)
	}
}

// detect tells the format by a trace's beginning, "" if it cannot.
func detect(head []byte, name string) Format {
	head = bytes.TrimLeft(head, " \t\r\n")
	line, _, _ := bytes.Cut(head, []byte("\n"))
	switch {
	case len(head) == 0:
		return ""
	case bytes.Contains(bytes.ToLower(line), []byte("contexttokens")):
		return Azure
	case head[0] == '[' || bytes.Contains(head, []byte(`"conversations"`)):
		return ShareGPT
	case head[0] == '{' && (bytes.Contains(line, []byte(`"input_length"`)) || strings.EqualFold(filepath.Ext(name), ".jsonl")):
		return Mooncake
	}
	return ""
}

// clock turns the moments of a trace into times since its first.
type clock struct {
	began bool
	first time.Time
	last  time.Duration
}

// at is the time of an entry. A trace in no order is refused: to sort it would
// take it whole into memory, and to send late ones at once would add bursts that
// were not there.
func (c *clock) at(moment time.Time) (time.Duration, error) {
	if !c.began {
		c.began, c.first = true, moment
	}
	since := moment.Sub(c.first)
	if since < c.last {
		return 0, fmt.Errorf("this request came %s before the one above: sort the file by time, the oldest first", c.last-since)
	}
	c.last = since
	return since, nil
}

// maxTokens bounds the lengths that are believed.
const maxTokens = 1 << 30
