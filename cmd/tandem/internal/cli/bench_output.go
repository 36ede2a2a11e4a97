package cli

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// benchOutputs say where a report goes. The table goes to standard output unless
// --json does.
type benchOutputs struct {
	name                string
	json                *bool
	html, out, csv, hdr string
	definitions         bool
}

func (o *benchOutputs) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.name, "name", "", "what to call this run in reports")
	fs.StringVar(&o.html, "report", "", "write a page of HTML with plots to this file")
	fs.StringVar(&o.out, "out", "", "write the report as JSON to this file, for bench compare")
	fs.StringVar(&o.csv, "csv", "", "write a row for each request to this file")
	fs.StringVar(&o.hdr, "hdr", "", "write the histograms to this file, as HdrHistogram's tools read them")
	fs.BoolVar(&o.definitions, "definitions", false, "print what each figure means, and what other tools call it")
	o.json = addJSON(cmd, "print the report as JSON instead of a table")
	onlyOnCommandLine(cmd, "name", "report", "out", "csv", "hdr", "definitions")
}

// files are the files that are asked for. To check them, report and records may be nil.
func (o *benchOutputs) files(r *report.Report, runs []*record.Run) []outputFile {
	return []outputFile{
		{"report", o.html, func(w io.Writer) error { return report.WriteHTML(w, r) }},
		{"out", o.out, func(w io.Writer) error { return r.WriteJSON(w) }},
		{"csv", o.csv, func(w io.Writer) error { return report.WriteCSV(w, runs) }},
		{"hdr", o.hdr, func(w io.Writer) error { return report.WriteHDR(w, runs) }},
	}
}

// check finds out before a long measurement that a file cannot be written.
func (o *benchOutputs) check(cmd *cobra.Command) error { return checkOutputs(cmd, o.files(nil, nil)) }

// write writes the report everywhere it was asked for. A file that fails does not
// keep the others from being written.
func (o *benchOutputs) write(cmd *cobra.Command, r *report.Report, runs []*record.Run) error {
	errs := []error{writeOutputs(o.files(r, runs))}
	switch {
	case *o.json:
		errs = append(errs, r.WriteJSON(cmd.OutOrStdout()))
	default:
		errs = append(errs, r.WriteTable(cmd.OutOrStdout(), tableWidth))
		if o.definitions {
			errs = append(errs, report.WriteDefinitions(cmd.OutOrStdout(), tableWidth))
		}
	}
	return errors.Join(errs...)
}

// tableWidth is the width of tables, in columns: what a terminal has at least, more
// or less.
const tableWidth = 100
