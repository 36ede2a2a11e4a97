package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/record"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/report"
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

// check finds out before a long measurement that a file cannot be written.
func (o *benchOutputs) check() error {
	for _, file := range []struct{ flag, path string }{{"report", o.html}, {"out", o.out}, {"csv", o.csv}, {"hdr", o.hdr}} {
		if file.path == "" {
			continue
		}
		info, err := os.Stat(filepath.Dir(file.path))
		switch {
		case err != nil:
			return fmt.Errorf("--%s: there is no folder %s: make it first", file.flag, filepath.Dir(file.path))
		case !info.IsDir():
			return fmt.Errorf("--%s: %s is not a folder", file.flag, filepath.Dir(file.path))
		}
		if info, err := os.Stat(file.path); err == nil && info.IsDir() {
			return fmt.Errorf("--%s: %s is a folder: name a file in it", file.flag, file.path)
		}
	}
	return nil
}

// write writes the report everywhere it was asked for. A file that fails does not
// keep the others from being written.
func (o *benchOutputs) write(cmd *cobra.Command, r *report.Report, runs []*record.Run) error {
	var errs []error
	for _, file := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{o.html, func(w io.Writer) error { return report.WriteHTML(w, r) }},
		{o.out, r.WriteJSON},
		{o.csv, func(w io.Writer) error { return report.WriteCSV(w, runs) }},
		{o.hdr, func(w io.Writer) error { return report.WriteHDR(w, runs) }},
	} {
		if file.path != "" {
			errs = append(errs, writeFile(file.path, file.write))
		}
	}
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

// writeFile writes a file whole or not at all.
func writeFile(path string, write func(io.Writer) error) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".tandem-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(temporary.Name())
	err = errors.Join(write(temporary), temporary.Chmod(reportFileMode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
