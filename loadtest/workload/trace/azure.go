package trace

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// azure reads traces of Azure's LLM inference services: CSV without quotes.
type azure struct {
	lines *lines
	clock clock
	// Column indexes of the fields, and the number of columns.
	timestamp, context, generated, count int
}

// newAzure reads the header.
func newAzure(in *lines) (*azure, error) {
	a := &azure{lines: in, timestamp: -1, context: -1, generated: -1}
	header, err := in.next()
	if errors.Is(err, io.EOF) {
		return nil, &SyntaxError{in.name, 1, 1, "the file is empty: expected the header TIMESTAMP,ContextTokens,GeneratedTokens"}
	}
	if err != nil {
		return nil, err
	}
	for i, name := range strings.Split(string(header), ",") {
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "timestamp":
			a.timestamp = i
		case "contexttokens":
			a.context = i
		case "generatedtokens":
			a.generated = i
		}
		a.count = i + 1
	}
	for _, column := range []struct {
		name  string
		index int
	}{{"TIMESTAMP", a.timestamp}, {"ContextTokens", a.context}, {"GeneratedTokens", a.generated}} {
		if column.index < 0 {
			return nil, in.fail(1, "the header has no column %s: expected TIMESTAMP,ContextTokens,GeneratedTokens", column.name)
		}
	}
	return a, nil
}

func (a *azure) Format() Format { return Azure }

func (a *azure) Next() (Entry, error) {
	line, err := a.lines.next()
	if err != nil {
		return Entry{}, err
	}
	var entry Entry
	column := 1
	for i := range a.count {
		field, rest, more := bytes.Cut(line, []byte(","))
		if !more && i < a.count-1 {
			return Entry{}, a.lines.fail(column+len(field), "the line has %d fields: expected %d, as in the header", i+1, a.count)
		}
		if more && i == a.count-1 {
			return Entry{}, a.lines.fail(column+len(field), "the line has more than %d fields: expected as many as the header", a.count)
		}
		text := string(bytes.TrimSpace(field))
		switch i {
		case a.timestamp:
			moment, ok := parseMoment(text)
			if !ok {
				return Entry{}, a.lines.fail(column, "%s is not a time: expected one such as 2023-11-16 18:15:46.6805900", quoted(text))
			}
			if entry.At, err = a.clock.at(moment); err != nil {
				return Entry{}, a.lines.fail(column, "%v", err)
			}
		case a.context, a.generated:
			tokens, err := strconv.Atoi(text)
			if err != nil || tokens < 0 || tokens > maxTokens {
				return Entry{}, a.lines.fail(column, "%s is not a number of tokens: expected a whole number from 0 to 2^30", quoted(text))
			}
			if i == a.context {
				entry.PromptTokens = tokens
			} else {
				entry.OutputTokens = tokens
			}
		}
		line = rest
		column += len(field) + 1
	}
	return entry, nil
}

// parseMoment parses the forms in the traces of 2023 and 2024.
func parseMoment(text string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339, "2006-01-02T15:04:05"} {
		if moment, err := time.Parse(layout, text); err == nil {
			return moment, true
		}
	}
	return time.Time{}, false
}

// quoted makes text printable and short for an error.
func quoted(text string) string {
	const most = 40
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
