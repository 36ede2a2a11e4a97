package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/internal/jsonerror"
	"github.com/tandem-serving/tandem/loadtest/measure"
)

// maxBytes bounds Read. A long search's report has a few megabytes.
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

// Read reads a report of WriteJSON, including later versions with the same major number.
// Errors give line and column if possible. In the result, distributions are never nil,
// and impossible figures are rejected.
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
	// A wrong type elsewhere is reported below, where everything is parsed.
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

// complete adds empty distributions where a summary or its classes have none.
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

// unchecked are keys whose figures no tool reads or may be negative.
var unchecked = []string{"target", "host", "client", "tail", "series", "curves", "needs", "effective", "backlog_slope_rps"}

// possible returns an error for the first impossible figure: a negative count, rate or
// latency, a share above 1, or an interval that ends before it begins. Such figures would
// make tables and comparisons silently wrong. value is the decoded JSON at a path in the
// report.
func possible(at string, value any) error {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if slices.Contains(unchecked, key) && !strings.HasSuffix(at, "classes") {
				continue
			}
			if err := possible(strings.TrimPrefix(at+"."+key, "."), value[key]); err != nil {
				return err
			}
		}
	case []any:
		if from, to, ok := ends(value); ok {
			switch {
			case from > to:
				return fmt.Errorf("%s is [%v, %v]: an interval cannot end before it begins", at, from, to)
			case strings.Contains(at, ".ci."):
				return possible(at, from)
			}
			return nil
		}
		for i := range value {
			if err := possible(fmt.Sprintf("%s[%d]", at, i), value[i]); err != nil {
				return err
			}
		}
	case float64:
		switch {
		case value < 0:
			return fmt.Errorf("%s is %v, and it cannot be below 0", at, value)
		case value > 1 && strings.Contains(at, "slo_attainment"):
			return fmt.Errorf("%s is above 1, and it is a share", at)
		}
	}
	return nil
}

// ends returns the ends of a confidence interval, if list is one.
func ends(list []any) (from, to float64, ok bool) {
	if len(list) != 2 {
		return 0, 0, false
	}
	from, first := list[0].(float64)
	to, second := list[1].(float64)
	return from, to, first && second
}
