package tempfolder_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
)

const (
	lockName = ".tandem-in-use"
	inChild  = "TANDEM_SCRATCH_TEST"
)

// TestMain is also what is killed: a process with a folder.
func TestMain(m *testing.M) {
	if os.Getenv(inChild) == "" {
		os.Exit(m.Run())
	}
	f, err := tempfolder.Make("test")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(f.Path)
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
}

// start runs another process with a folder; kill ends it with SIGKILL.
func start(t *testing.T) (path string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), inChild+"=1")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // that it was killed
		}
	}
	t.Cleanup(kill)
	path, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(path), kill
}

// age makes a folder's lock as old as one that was left behind.
func age(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(path, lockName), old, old); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// What a process leaves that is killed is removed by the next that makes a folder, and
// what one has that lives is not.
func TestKilledProcessesFolderIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead, kill := start(t)
	living, _ := start(t)
	young, killYoung := start(t)
	for _, path := range []string{dead, living} {
		if err := os.WriteFile(filepath.Join(path, "data"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		age(t, path)
	}
	kill()
	killYoung()
	f, err := tempfolder.Make("test")
	if err != nil {
		t.Fatal(err)
	}
	if exists(dead) {
		t.Error("the folder of a process that was killed is there")
	}
	if !exists(living) || !exists(young) {
		t.Errorf("in use, there: %v; just left, there: %v", exists(living), exists(young))
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its own: %v, %v", info, err)
	}
	for range 2 {
		if err := f.Remove(); err != nil || exists(f.Path) {
			t.Errorf("removed: %v, there: %v", err, exists(f.Path))
		}
	}
}

// Nothing is removed that is not known to be a folder of a process that is gone.
func TestWhatIsNotOursStays(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", folder)
	make := func(at, name string, lock func(path string) error) string {
		path := filepath.Join(at, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "data"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if lock != nil {
			if err := lock(filepath.Join(path, lockName)); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	left := func(path string) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0))
	}
	elsewhere := make(outside, "tandem-elsewhere", left)
	gone := make(folder, "tandem-gone", left)
	if err := os.Symlink(elsewhere, filepath.Join(gone, "link")); err != nil {
		t.Fatal(err)
	}
	stay := []string{
		elsewhere, filepath.Join(elsewhere, "data"),
		make(folder, "tandem-of-a-user", nil),
		make(folder, "other-gone", left),
		make(folder, "tandem-link-as-lock", func(path string) error { return os.Symlink(filepath.Join(elsewhere, lockName), path) }),
		make(folder, "tandem-folder-as-lock", func(path string) error { return os.Mkdir(path, 0o700) }),
	}
	link := filepath.Join(folder, "tandem-link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	stay = append(stay, link)
	f, err := tempfolder.Make("test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Remove() }()
	for _, path := range stay {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if exists(gone) {
		t.Errorf("%s is there", gone)
	}
}

// A start removes some folders at a time.
func TestRemovalIsBounded(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	for i := range 100 {
		path := filepath.Join(folder, fmt.Sprintf("tandem-%d", i))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, lockName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		age(t, path)
	}
	var left []int
	for range 3 {
		f, err := tempfolder.Make("test")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, len(entries))
	}
	if want := []int{36, 0, 0}; !slices.Equal(left, want) {
		t.Errorf("after each start there are %v, want %v", left, want)
	}
}
