package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/internal/jsonerror"
	"github.com/tandem-serving/tandem/loadtest/measure"
)

// maxBytes bounds what Read takes; a report of a long search has a few megabytes.
const maxBytes = 256 << 20

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Read reads a report that WriteJSON wrote, also one of a later version with the same
// number before the dot. An error names line and column where it can. Distributions
// are never nil in what it returns, and no figure is one that nothing can measure.
func Read(in io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("read report: it has more than %d MiB", maxBytes>>20)
	}
	if at := bytes.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(" \t\r\n", r) }); at >= 0 && text[at] != '{' {
		line, column := position(text, int64(at)+1)
		return nil, fmt.Errorf("not a report of bench serve: expected an object at line %d, column %d", line, column)
	}
	var head struct {
		Schema string `json:"schema"`
	}
	// A type that does not fit elsewhere is reported below, where all is read.
	if err := json.Unmarshal(text, &head); err != nil && head.Schema == "" {
		return nil, positioned(text, err)
	}
	if err := checkSchema(head.Schema); err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, positioned(text, err)
	}
	var figures any
	if err := json.Unmarshal(text, &figures); err != nil {
		return nil, positioned(text, err)
	}
	if err := possible("", figures); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	complete(&r.Summary)
	for i := range r.Runs {
		complete(&r.Runs[i].Summary)
	}
	if r.Search != nil {
		for i := range r.Search.Steps {
			if r.Search.Steps[i].Summary == nil {
				return nil, fmt.Errorf("read report: search.steps[%d] has no summary", i)
			}
			complete(r.Search.Steps[i].Summary)
		}
	}
	return &r, nil
}

func checkSchema(schema string) error {
	name, version, _ := strings.Cut(Schema, "/")
	major, _, _ := strings.Cut(version, ".")
	gotName, gotVersion, ok := strings.Cut(schema, "/")
	gotMajor, _, _ := strings.Cut(gotVersion, ".")
	switch {
	case !ok || gotName != name:
		return fmt.Errorf("read report: schema is %.80q, not %s: it is no report of tandem bench serve", schema, Schema)
	case gotMajor != major:
		return fmt.Errorf("read report: schema is %.80q, and this tandem reads %s/%s.x: use a tandem of the version that wrote it", schema, name, major)
	}
	return nil
}

// complete gives empty distributions to a summary that has none, and to its classes.
func complete(s *measure.Summary) {
	for _, d := range []**measure.Distribution{
		&s.TTFT, &s.TTFTSent, &s.SecondToken, &s.ITL, &s.ITLMessage, &s.TPOT, &s.E2E, &s.E2ESent,
		&s.NormalizedE2E, &s.DispatchDelay, &s.AdmissionDelay,
	} {
		if *d == nil {
			*d = &measure.Distribution{}
		}
	}
	for name, class := range s.Classes {
		if class == nil {
			delete(s.Classes, name)
			continue
		}
		complete(class)
	}
}

// positioned adds line and column to an error of encoding/json.
func positioned(text []byte, err error) error {
	offset, problem := jsonerror.Explain(err)
	if offset < 1 && len(text) > 0 || offset > int64(len(text)) {
		return fmt.Errorf("read report: %s", problem)
	}
	line, column := position(text, offset)
	return fmt.Errorf("read report: line %d, column %d: %s", line, column, problem)
}

// position is the line and column, from 1, of the byte before offset.
func position(text []byte, offset int64) (line, column int) {
	before := text[:offset]
	line = bytes.Count(before, []byte("\n")) + 1
	return line, max(len(before)-(bytes.LastIndexByte(before, '\n')+1), 1)
}
