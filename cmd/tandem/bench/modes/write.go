package modes

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// Reports are the reports of all contenders.
func (r *Result) Reports() (all []*report.Report) {
	for _, m := range r.Mixes {
		for _, o := range m.outcomes {
			all = append(all, o.Report)
		}
	}
	return all
}

// WriteJSON writes the result as one JSON object, with the reports of given rates.
func (r *Result) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if r.Rates == nil {
		return encoder.Encode(r)
	}
	return encoder.Encode(struct {
		*Result
		contenders.Document
		Interrupted bool `json:"interrupted,omitempty"` // both have it
	}{r, r.Rates.Document(), r.Interrupted})
}

// WriteMarkdown writes the tables.
func (r *Result) WriteMarkdown(w io.Writer) error {
	if r.Rates != nil {
		return r.Rates.WriteMarkdown(w)
	}
	var text strings.Builder
	r.capacities(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

// capacities is a row for each mix.
func (r *Result) capacities(out *strings.Builder) {
	if all := r.Reports(); len(all) > 0 {
		contenders.WriteMachine(out, all[0])
	}
	fmt.Fprintf(out, "| mix | SLO | %s | %s | %s | %s of the better |\n|---|---|---|---|---|---|\n", Aggregated, Disaggregated, Auto, Auto)
	var limits []string
	for i := range r.Mixes {
		m := &r.Mixes[i]
		fmt.Fprintf(out, "| %s | %s |", m.Name, m.SLO)
		for _, c := range m.contenders() {
			fmt.Fprintf(out, " %s |", interval(c.RPS, c.CI))
			if c.Client != "" {
				limits = append(limits, fmt.Sprintf("- %s, %s: the client's side limited the steps above the capacity: %s\n", m.Name, c.name, c.Client))
			}
		}
		fmt.Fprintf(out, " %s |\n", interval(m.AutoOfBetter, m.AutoOfBetterCI))
	}
	fmt.Fprintf(out, "\nCapacity: the highest rate, in requests a second, at which %.0f%% of the requests met the SLO. %s each.\n",
		100*search.Share, report.Count(r.Workers, "worker", "workers"))
	if len(r.Mixes) > 0 {
		fmt.Fprintf(out, "Medians of %d rounds, with their %.0f%% intervals.\n", r.Rounds, 100*r.Mixes[0].Confidence)
	}
	if r.Interrupted {
		out.WriteString("It ended early: mixes are missing, or the last one has fewer rounds.\n")
	}
	if limits != nil {
		out.WriteString("\n" + strings.Join(limits, ""))
	}
}

// interval is a figure with its interval.
func interval(value *float64, ci *[2]float64) string {
	if value == nil {
		return "n/a"
	}
	return fmt.Sprintf("%s (%s to %s)", report.Digits(*value), report.Digits(ci[0]), report.Digits(ci[1]))
}

// Page is where the page of a mix goes, if that of all would go to a file: of several mixes,
// each has its own.
func Page(file string, mixes []Mix, i int) string {
	if len(mixes) < 2 || file == "" {
		return file
	}
	end := filepath.Ext(file)
	return strings.TrimSuffix(file, end) + "-" + strings.ReplaceAll(mixes[i].Name, "/", "-") + end
}

// WritePage writes the page of a mix, with the plots of all contenders.
func (r *Result) WritePage(w io.Writer, i int) error {
	if i >= len(r.Mixes) {
		return nil // it ended before
	}
	return contenders.WriteHTML(w, r.Mixes[i].outcomes)
}
