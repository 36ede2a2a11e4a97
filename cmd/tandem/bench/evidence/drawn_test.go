package evidence_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
)

// Traces that a killed process left behind are removed by the next one, and its own by Close.
func TestDrawnLeavesNothing(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	left := filepath.Join(temporary, "tandem-evidence-1")
	lock := filepath.Join(left, ".tandem-in-use") // as in tempfolder
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(lock, nil, 0o600), os.Chtimes(lock, old, old)); err != nil {
		t.Fatal(err)
	}
	d, err := evidence.NewDrawnTraces(evidence.Options{Profiles: profiles})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was left behind is there still: %v", err)
	}
	if locks, err := filepath.Glob(filepath.Join(temporary, "tandem-evidence-*", ".tandem-in-use")); err != nil || len(locks) != 1 {
		t.Errorf("the folder has no lock, so that nobody can tell whether it is in use: %v, %v", locks, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(temporary); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
