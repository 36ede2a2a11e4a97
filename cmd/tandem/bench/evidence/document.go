package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
)

// documentVersion is that of the files that this package writes and reads.
const documentVersion = 1

// Document is docs/evidence.json, from which the page is written. Its JSON is public.
type Document struct {
	Version int `json:"version"`
	// Results are those of whole sections, in the order of Sections.
	Results []*Result `json:"sections"`
	// Small are the headline ratios of the small runs, by section.
	Small map[string][]Ratio `json:"small"`
}

// ReadDocument reads a document; without a file it is empty.
func ReadDocument(path string) (*Document, error) {
	d := &Document{Version: documentVersion, Small: map[string][]Ratio{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s is not what 'tandem bench evidence' writes: %w", path, err)
	}
	if d.Version != documentVersion {
		return nil, fmt.Errorf("%s has version %d, and this program writes %d: delete it and run 'make evidence'", path, d.Version, documentVersion)
	}
	if d.Small == nil {
		d.Small = map[string][]Ratio{}
	}
	return d, nil
}

// Put replaces what the document has of a section. Tables from traces stay if the new result
// has none.
func (d *Document) Put(r *Result) {
	i := slices.IndexFunc(d.Results, func(old *Result) bool { return old.Section == r.Section })
	if i < 0 {
		d.Results = append(d.Results, r)
	} else {
		if len(r.FromTraces) == 0 {
			r.FromTraces = d.Results[i].FromTraces
		}
		d.Results[i] = r
	}
	place := func(r *Result) int {
		return slices.IndexFunc(Sections(), func(s Section) bool { return s.Name() == r.Section })
	}
	d.Results = slices.DeleteFunc(d.Results, func(r *Result) bool { return place(r) < 0 }) // sections that are gone
	slices.SortStableFunc(d.Results, func(a, b *Result) int { return place(a) - place(b) })
}

// WriteJSON writes the document.
func (d *Document) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// Check compares small runs with those of the document. The error names each headline ratio
// that moved by more than its noise, is missing, or is new.
func (d *Document) Check(results []*Result) error {
	var errs []error
	for _, r := range results {
		committed, known := d.Small[r.Section]
		if !known {
			errs = append(errs, fmt.Errorf("%s has no small run in the file: run 'make evidence' and commit what it writes", r.Section))
			continue
		}
		for _, old := range committed {
			i := slices.IndexFunc(r.Ratios, func(n Ratio) bool { return n.Name == old.Name })
			if i < 0 {
				errs = append(errs, fmt.Errorf("%s: %q is gone: run 'make evidence' and commit what it writes", r.Section, old.Name))
			} else if now := r.Ratios[i].Value; !(math.Abs(now-old.Value) <= old.Noise) { // so that NaN is one too
				errs = append(errs, fmt.Errorf("%s: %q is %.4g, was %.4g, and its noise is %.2g: find out why; if it is right, run 'make evidence' and commit what it writes",
					r.Section, old.Name, now, old.Value, old.Noise))
			}
		}
		for _, n := range r.Ratios {
			if !slices.ContainsFunc(committed, func(old Ratio) bool { return old.Name == n.Name }) {
				errs = append(errs, fmt.Errorf("%s: %q is not in the file: run 'make evidence' and commit what it writes", r.Section, n.Name))
			}
		}
	}
	return errors.Join(errs...)
}
