package evidence

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence/workloads"
	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
)

// drawnTraces is a folder of traces that are drawn from the committed fits. Close removes it.
type drawnTraces struct {
	fits   *workloads.File
	folder *tempfolder.Folder
}

func newDrawnTraces(o Options) (*drawnTraces, error) {
	fits, err := workloads.Read(filepath.Join(o.Profiles, workloads.FileName))
	if err != nil {
		return nil, err
	}
	folder, err := tempfolder.Make("evidence")
	if err != nil {
		return nil, err
	}
	return &drawnTraces{fits, folder}, nil
}

// Close removes the traces.
func (d *drawnTraces) Close() error { return d.folder.Remove() }

// write writes a trace and returns its path.
func (d *drawnTraces) write(name string, draw func(io.Writer) error) (string, error) {
	path := filepath.Join(d.folder.Path, name)
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(draw(file), file.Close())
}

// lengths are lines of traffic whose requests are as long as those of Azure's conversations:
// drawn from the fit, or from a trace.
func lengths(trace string) string {
	return fmt.Sprintf("  trace: %q\n  prompt-tokens: empirical\n  output-tokens: empirical\n", trace)
}

// azure draws a trace of Azure's conversations.
func (d *drawnTraces) azure(name string, of *workloads.Independent) (string, error) {
	const requests = 5000
	return d.write(name, func(w io.Writer) error { return of.WriteTrace(w, requests, 1) })
}
