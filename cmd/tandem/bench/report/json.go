package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/measure"
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
// are never nil in what it returns.
func Read(in io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("read report: it has more than %d MiB", maxBytes>>20)
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
	offset := int64(-1)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = syntax.Offset
	}
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		offset = mismatch.Offset
	}
	if offset < 0 || offset > int64(len(text)) {
		return fmt.Errorf("read report: %w", err)
	}
	before := text[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Errorf("read report: line %d, column %d: %w", line, max(column, 1), err)
}
