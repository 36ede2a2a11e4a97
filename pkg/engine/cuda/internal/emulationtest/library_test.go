package emulationtest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeCompiler makes the compiler a shell script that writes down how it is called and runs
// body, and the cache an empty folder. It gives the folder of the script's log.
func fakeCompiler(t *testing.T, body string) (folder, cache string) {
	t.Helper()
	folder, cache = t.TempDir(), t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = --version ] && { echo fake; exit; }\necho \"$*\" >> '" + folder + "/log'\n" + body
	if err := os.WriteFile(filepath.Join(folder, "compiler"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CXX", filepath.Join(folder, "compiler"))
	t.Setenv("XDG_CACHE_HOME", cache)
	return folder, cache
}

// writesResult is a compiler that writes something where -o says.
const writesResult = `while [ $# -gt 0 ]; do [ "$1" = -o ] && { echo made > "$2"; exit; }; shift; done; exit 1`

func compilations(t *testing.T, folder string) int {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(folder, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(log), "\n")
}

// foldersIn lists what is in the cache beside its lock.
func foldersIn(t *testing.T, cache string) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(cache, "tandem", "emulation", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(folders, func(path string) bool { return filepath.Base(path) == "lock" })
}

func TestLibraryIsBuiltOnce(t *testing.T) {
	folder, cache := fakeCompiler(t, writesResult)
	first := Library(t)
	built := compilations(t, folder)
	if built < 2 {
		t.Fatalf("%d compilations", built)
	}
	if text, err := os.ReadFile(first); err != nil || string(text) != "made\n" {
		t.Fatalf("%s holds %q: %v", first, text, err)
	}
	if second := Library(t); second != first || compilations(t, folder) != built {
		t.Errorf("the second time %s, with %d compilations", second, compilations(t, folder)-built)
	}
	kept, err := filepath.Glob(filepath.Join(cache, "tandem", "emulation", "*", "*"))
	if err != nil || len(kept) != 1 {
		t.Errorf("kept %v: %v", kept, err)
	}
}

func TestBuildsAtOnce(t *testing.T) {
	folder, cache := fakeCompiler(t, writesResult)
	b, err := newBuild()
	if err != nil {
		t.Fatal(err)
	}
	sources := len(b.sources) + len(b.kernels)
	paths := make([]string, 4)
	var wait sync.WaitGroup
	for i := range paths {
		wait.Go(func() {
			b, err := newBuild()
			if err != nil {
				t.Error(err)
				return
			}
			if paths[i], err = b.library(); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, path := range paths {
		if path == "" || path != paths[0] {
			t.Errorf("built %v", paths)
		}
	}
	if left := foldersIn(t, cache); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	// One compiled, and linked; the others waited for it.
	if got := compilations(t, folder); got != sources+1 {
		t.Errorf("%d compilations for %d sources", got, sources)
	}
}

func TestCompilerThatFails(t *testing.T) {
	_, cache := fakeCompiler(t, "echo 'this is wrong' >&2; exit 3")
	b, err := newBuild()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = b.library(); err == nil || !strings.Contains(err.Error(), "this is wrong") || !strings.Contains(err.Error(), "driver_run.cpp") {
		t.Errorf("the error is %v", err)
	}
	if left := foldersIn(t, cache); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, chosen := range []string{"", "no-such-compiler"} {
		t.Setenv("CXX", chosen)
		if _, err := newBuild(); !errors.Is(err, errNoCompiler) {
			t.Errorf("CXX=%q: %v", chosen, err)
		}
	}
}

func TestSweep(t *testing.T) {
	cache := t.TempDir()
	for name, age := range map[string]time.Duration{"old": keptFor + time.Hour, "new": keptFor - time.Hour} {
		folder := filepath.Join(cache, name)
		if err := os.MkdirAll(filepath.Join(folder, "inner"), 0o700); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(folder, then, then); err != nil {
			t.Fatal(err)
		}
	}
	sweep(cache)
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 1 || left[0].Name() != "new" {
		t.Errorf("left %v: %v", left, err)
	}
}
