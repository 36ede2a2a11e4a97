package commands

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// outputFile is a file that a flag asks for; with an empty path nobody does.
type outputFile struct {
	flag, path string
	write      func(io.Writer) error
}

// checkOutputs finds out before a long measurement that a file cannot be written, or
// that two would go to the same place.
func checkOutputs(cmd *cobra.Command, files []outputFile) error {
	asked := map[string]string{} // flags by where they write
	for _, file := range files {
		if file.path == "" {
			continue
		}
		if err := checkOutput(file.path); err != nil {
			return fmt.Errorf("--%s: %w", file.flag, err)
		}
		place := resolved(file.path)
		if other, twice := asked[place]; twice && place != os.DevNull {
			return usageError(cmd, fmt.Sprintf("--%s and --%s both write to %s: name two files", other, file.flag, file.path))
		}
		asked[place] = file.flag
	}
	return nil
}

func checkOutput(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a folder: name a file in it", path)
	case err == nil && (!info.Mode().IsRegular() || ownStream(info) != nil):
		return accessible(path, unix.W_OK)
	}
	folder := filepath.Dir(resolved(path))
	info, err = os.Stat(folder)
	switch {
	case err != nil:
		return fmt.Errorf("there is no folder %s: make it first", folder)
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", folder)
	}
	return accessible(folder, unix.W_OK|unix.X_OK)
}

func accessible(path string, mode uint32) error {
	if err := unix.Access(path, mode); err != nil {
		return fmt.Errorf("cannot write to %s: %w", path, err)
	}
	return nil
}

// resolved is what a path names in the end: links are followed, also to what is not
// there yet.
func resolved(path string) string {
	const most = 40 // links, as the kernel follows at most
	for range most {
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(folder, filepath.Base(path))
	}
	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}
	return path
}

// ownStream is the standard stream of this process that a file is, otherwise nil.
// What is opened by its path once more has a position of its own, so both would write
// over one another.
func ownStream(info fs.FileInfo) *os.File {
	for _, stream := range []*os.File{os.Stdout, os.Stderr} {
		if own, err := stream.Stat(); err == nil && os.SameFile(own, info) {
			return stream
		}
	}
	return nil
}

// writeOutputs writes all files that are asked for. One that fails does not keep the
// others from being written.
func writeOutputs(files []outputFile) error {
	var errs []error
	for _, file := range files {
		if file.path == "" {
			continue
		}
		if err := writeOutput(file.path, file.write); err != nil {
			errs = append(errs, fmt.Errorf("--%s: write %s: %w", file.flag, file.path, err))
		}
	}
	return errors.Join(errs...)
}

// sayWritten says on standard error where a page is that was written without an error.
func sayWritten(cmd *cobra.Command, err error, page outputFile) {
	if info, statErr := os.Stat(page.path); page.path == "" || err != nil || statErr != nil || !info.Mode().IsRegular() {
		return
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote the page %s: open it in a browser\n", page.path)
}

// writeOutput writes a file whole or not at all, through links. What is there and no
// regular file, such as a device or a pipe, stays and is written to.
func writeOutput(path string, write func(io.Writer) error) error {
	info, err := os.Stat(path)
	existed, mode := err == nil, fs.FileMode(reportFileMode)
	if existed {
		if stream := ownStream(info); stream != nil {
			return write(withoutPath{stream})
		}
		if !info.Mode().IsRegular() {
			return writeInto(path, write)
		}
		mode = info.Mode().Perm()
	}
	path = resolved(path)
	temporary, err := os.OpenFile(filepath.Join(filepath.Dir(path), ".tandem-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return cause(err)
	}
	defer os.Remove(temporary.Name())
	err = write(withoutPath{temporary})
	if existed { // as it was, whatever the umask
		err = errors.Join(err, cause(temporary.Chmod(mode)))
	}
	err = errors.Join(err, cause(temporary.Close()))
	if err == nil {
		err = cause(os.Rename(temporary.Name(), path))
	}
	return err
}

func writeInto(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return cause(err)
	}
	return errors.Join(write(withoutPath{file}), cause(file.Close()))
}

// withoutPath is a file whose errors do not name it: it may be a temporary one.
type withoutPath struct{ file *os.File }

func (w withoutPath) Write(b []byte) (int, error) {
	n, err := w.file.Write(b)
	return n, cause(err)
}

// cause is what is behind an error of a file, without the file's name.
func cause(err error) error {
	if path, is := errors.AsType[*fs.PathError](err); is {
		return path.Err
	}
	if link, is := errors.AsType[*os.LinkError](err); is {
		return link.Err
	}
	return err
}

// reportFileMode is that of files that are new, less the umask.
const reportFileMode = 0o644

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
	fs.StringVar(&o.name, "name", "", "name of this run in reports")
	fs.StringVar(&o.html, "report", "", "write an HTML page with plots to this file")
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
		{"out", o.out, r.WriteJSON},
		{"csv", o.csv, func(w io.Writer) error { return report.WriteCSV(w, runs) }},
		{"hdr", o.hdr, func(w io.Writer) error { return report.WriteHDR(w, runs) }},
	}
}

// check finds out before a long measurement that a file cannot be written.
func (o *benchOutputs) check(cmd *cobra.Command) error { return checkOutputs(cmd, o.files(nil, nil)) }

// write writes the report everywhere it was asked for. A file that fails does not
// keep the others from being written.
func (o *benchOutputs) write(cmd *cobra.Command, r *report.Report, runs []*record.Run) error {
	files := o.files(r, runs)
	errs := []error{writeOutputs(files)}
	defer sayWritten(cmd, errs[0], files[0])
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
