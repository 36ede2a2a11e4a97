// Package trace reads recorded traffic of real services: when requests came, how long
// they were, which prefixes they shared, or their text.
//
// Package workload imports it. It starts no goroutines. It streams traces, so memory does
// not grow with the file.
//
// The formats and their sources:
//
//	azure     CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens:
//	          github.com/Azure/AzurePublicDataset (Patel et al., "Splitwise", ISCA '24)
//	mooncake  JSON lines with timestamp (ms), input_length, output_length and
//	          hash_ids, one for each 512 tokens of the prompt:
//	          github.com/kvcache-ai/Mooncake (Qin et al., "Mooncake", FAST '25)
//	sharegpt  a JSON array, or JSON lines, of {id, conversations: [{from, value}]}:
//	          conversations shared from chat services
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

// Format of a trace.
type Format string

// Formats.
const (
	// Auto detects the format from the file's name and first bytes.
	Auto     Format = "auto"
	Azure    Format = "azure"
	Mooncake Format = "mooncake"
	ShareGPT Format = "sharegpt"
)

// Timed reports whether traces of this format have times.
func (f Format) Timed() bool { return f == Azure || f == Mooncake }

// BlockTokens is the number of prompt tokens per hash id of Mooncake.
const BlockTokens = 512

// Entry is one request of a trace, or one conversation of ShareGPT.
type Entry struct {
	// At is when it arrived, since the first entry; 0 if the format has no times.
	At time.Duration
	// PromptTokens and OutputTokens; 0 in ShareGPT, whose texts determine them.
	PromptTokens, OutputTokens int
	// Blocks are the prompt's hash ids, one per BlockTokens tokens, the last possibly
	// partial: equal ids stand for equal tokens. Nil if unknown.
	Blocks []uint64
	// System is the conversation's system prompt, if any.
	System string
	// Turns of the conversation; nil in other formats.
	Turns []Turn
}

// Turn is a user's message and its answer.
type Turn struct {
	User, Reply string
}

// Reader reads the entries of a trace, oldest first. Not for concurrent use.
type Reader interface {
	// Next returns the next entry, which the caller owns, io.EOF at the end, or a
	// *SyntaxError. After an error, reading cannot continue.
	Next() (Entry, error)
	// Format is the trace's actual format.
	Format() Format
}

// SyntaxError is an invalid place in a trace.
type SyntaxError struct {
	// Lines and columns count from 1, columns in bytes.
	File         string
	Line, Column int
	// Problem says what is there and what was expected.
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// File is an open trace file.
type File struct {
	Reader
	file *os.File
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Open opens a trace. It must be a regular file: callers open it once to detect the
// format, and again for each run.
func Open(path string, format Format) (*File, error) {
	if about, err := os.Stat(path); err == nil && !about.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: save the trace to one first", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	reader, err := NewReader(file, path, format)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &File{reader, file}, nil
}

// sniffed is how many bytes the format is detected from.
const sniffed = 4096

// NewReader reads a trace from r. Name appears in errors, and its extension helps Auto.
func NewReader(r io.Reader, name string, format Format) (Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	if head, err := buffered.Peek(3); err == nil && bytes.Equal(head, []byte("\ufeff")) {
		_, _ = buffered.Discard(3) // already peeked
	}
	if format == Auto || format == "" {
		head, err := buffered.Peek(sniffed)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if len(head) == 0 {
			return nil, &SyntaxError{name, 1, 1, "the file is empty"}
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

// detect returns the format that a trace's beginning indicates, "" if unclear.
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

// clock converts a trace's times to times since its first.
type clock struct {
	began bool
	first time.Time
	last  time.Duration
}

// at is an entry's time. Unordered traces are refused: sorting one would need it all in
// memory, and sending late entries at once would add bursts.
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

// maxTokens bounds plausible lengths.
const maxTokens = 1 << 30
