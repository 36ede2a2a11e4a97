package commands_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

func saying(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

// TestWriteOutputThroughLinks: a link stays one, and what it names is written, also if
// it is not there yet.
func TestWriteOutputThroughLinks(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, target, before string }{
		{"to a file", "file", "old"},
		{"to nothing yet", "missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, link := filepath.Join(dir, c.target), filepath.Join(dir, c.target+"-link")
			if c.before != "" {
				if err := os.WriteFile(target, []byte(c.before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink(c.target, link); err != nil {
				t.Fatal(err)
			}
			if err := commands.WriteOutput(link, saying("new")); err != nil {
				t.Fatal(err)
			}
			if to, err := os.Readlink(link); err != nil || to != c.target {
				t.Errorf("the link is %q: %v", to, err)
			}
			if got, err := os.ReadFile(target); err != nil || string(got) != "new" {
				t.Errorf("it has %q: %v", got, err)
			}
			if info, err := os.Stat(target); c.before != "" && (err != nil || info.Mode().Perm() != 0o600) {
				t.Errorf("its mode is %v: %v", info, err)
			}
		})
	}
}

// TestWriteOutputHasTheUmask: as what other programs write, unless the file was there before.
func TestWriteOutputHasTheUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "file")
	for _, want := range []os.FileMode{0o600, 0o664} {
		if err := commands.WriteOutput(path, saying("new")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("its mode is %v, want %v: %v", info.Mode(), want, err)
		}
		if err := os.Chmod(path, 0o664); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteOutputToPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// For reading and writing it opens at once, and holds what is written.
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if err := commands.WriteOutput(path, saying("new")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(pipe, got); err != nil || string(got) != "new" {
		t.Errorf("%q came through: %v", got, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("it is no pipe any more: %v, %v", info, err)
	}
}

// TestWriteOutputFails: what was there stays, and the error names no temporary file.
func TestWriteOutputFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := commands.WriteOutput(path, func(w io.Writer) error {
		_ = saying("half")(w)
		return errors.New("no more")
	})
	if err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("error %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("it has %q: %v", got, err)
	}
	if err := commands.WriteOutput(filepath.Join(path, "file"), saying("")); err == nil || strings.Contains(err.Error(), ".tandem-") {
		t.Errorf("error %v", err)
	}
	if err := commands.WriteOutput("/dev/full", saying("x")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
}

// TestOutputsAreChecked: before anything is measured, by each command that writes.
func TestOutputsAreChecked(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	serve := []string{"bench", "serve", "--rate", "1", "--addr", "127.0.0.1:1"}
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"serve, no folder", append(serve, "--out", filepath.Join(dir, "no", "file")), 1, "there is no folder"},
		{"serve, twice", append(serve, "--out", file, "--csv", link), 2, "--out and --csv both write to"},
		{"modes, no folder", []string{"bench", "modes", "--markdown", filepath.Join(dir, "no", "file")}, 1, "--markdown: there is no folder"},
		{"modes, twice", []string{"bench", "modes", "--mix", "azure", "--out", file, "--report", file}, 2, "--report and --out both write to"},
		{"profile, a folder", []string{"profile", "--out", dir}, 1, "is a folder: name a file in it"},
		{"profile, below a file", []string{"profile", "--out", filepath.Join(file, "x")}, 1, "is not a folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := run(t.Context(), "", nil, c.args...)
			if got.status != c.status || !strings.Contains(got.stderr, c.says) {
				t.Errorf("status %d: %s", got.status, got.stderr)
			}
		})
	}
}
