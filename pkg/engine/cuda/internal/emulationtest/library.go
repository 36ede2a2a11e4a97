// Package emulationtest is a CUDA driver library that needs no GPU, for tests: src/driver.h
// says what it does, src/emulation.h how the engine's kernels run in it. The same file is
// a cuBLASLt library (src/blaslt.h) and an NVML (src/nvml.cpp). It is compiled by
// the machine's C++ compiler when it is first asked for, and kept in the user's cache.
//
// Only tests import it. A library's state is one for the process, so tests that use one
// must not run at the same time; Control changes it and looks into it.
package emulationtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// keptFor is how long a library is kept that no test asks for.
const keptFor = 7 * 24 * time.Hour

// flags are those of every source. Nothing may be contracted that the source does not
// write as one operation: the kernels' results are defined bit for bit. Threads' variables
// are few, and are not asked for by a call each time.
var flags = []string{"-std=c++17", "-O2", "-g1", "-fPIC", "-ftls-model=initial-exec", "-ffp-contract=off", "-pthread"}

// What a machine may lack that did not build the test.
var (
	errNoCompiler = errors.New("no C++ compiler for the emulated driver: install g++ or clang-19, or set CXX")
	errNoSources  = errors.New("the sources of the emulated driver are not where this test was built: run it there")
)

// Library is the path of the library, compiled of the sources as they are now. Without a
// C++ compiler ($CXX, c++ or clang++-19) or without the sources the test is skipped, unless
// TANDEM_REQUIRE_EMULATION is 1, where it fails.
func Library(t testing.TB) string {
	t.Helper()
	b, err := newBuild()
	if (errors.Is(err, errNoCompiler) || errors.Is(err, errNoSources)) && os.Getenv("TANDEM_REQUIRE_EMULATION") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	path, err := b.library()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build is one way to compile the sources.
type build struct {
	compiler string
	here     string   // the folder of this package
	sources  []string // what is compiled
	kernels  []string // and what is compiled behind src/emulation.h
	key      string   // of all that the result depends on
}

func newBuild() (*build, error) {
	here, err := folder()
	if err != nil {
		return nil, err
	}
	b := &build{here: here}
	if b.compiler, err = compiler(); err != nil {
		return nil, err
	}
	if err := b.find(); err != nil {
		return nil, err
	}
	if err := b.hash(); err != nil {
		return nil, err
	}
	return b, nil
}

// folder is this package's in the checkout that a test runs in: go test starts a test in
// its package's folder. The paths in a binary do not tell, for -trimpath shortens them.
func folder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		here := filepath.Join(dir, "pkg", "engine", "cuda", "internal", "emulationtest")
		if _, err := os.Stat(here); err == nil {
			return here, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errNoSources
		}
	}
}

func compiler() (string, error) {
	candidates := []string{"c++", "clang++-19"}
	if chosen := os.Getenv("CXX"); chosen != "" {
		candidates = []string{chosen}
	}
	for _, name := range candidates {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoCompiler
}

// find lists the sources, and the kernels as soon as there is something to run them with.
func (b *build) find() error {
	var err error
	if b.sources, err = filepath.Glob(filepath.Join(b.here, "src", "*.cpp")); err != nil {
		return err
	}
	if len(b.sources) == 0 {
		return errNoSources
	}
	if _, err := os.Stat(filepath.Join(b.here, "src", "emulation.h")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	b.kernels, err = filepath.Glob(filepath.Join(b.here, "..", "kernels", "*.cu"))
	return err
}

// hash digests compiler, flags, and every source and header.
func (b *build) hash() error {
	h := sha256.New()
	version, err := exec.Command(b.compiler, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", b.compiler, err)
	}
	fmt.Fprintf(h, "%s\n%s\n%q\n", b.compiler, version, flags)
	for _, pattern := range []string{"src/*.cpp", "src/*.h", "../driver/tdm_driver_api.h", "../blaslt/tdm_blaslt_api.h", "../nvml/tdm_nvml_api.h", "../driver/testdata/*.cu", "../kernels/*.cu", "../kernels/*.h"} {
		paths, err := filepath.Glob(filepath.Join(b.here, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%s %d\n", filepath.Base(path), len(text))
			h.Write(text)
		}
	}
	b.key = hex.EncodeToString(h.Sum(nil))[:32]
	return nil
}

// library compiles what is not in the cache yet: one process at a time, so that the tests
// of several packages do not compile the same, in a folder that it renames when all is there.
func (b *build) library() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the emulated driver: %w: set HOME or XDG_CACHE_HOME", err)
	}
	cache = filepath.Join(cache, "tandem", "emulation")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make a folder for the emulated driver: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("lock the emulated driver's folder: %w", err)
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	folder := filepath.Join(cache, b.key)
	path := filepath.Join(folder, "libcuda.so.1")
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		_ = os.Chtimes(folder, now, now) // else it is built again some day
		return path, nil
	}
	sweep(cache)
	work, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the emulated driver: %w", err)
	}
	defer os.RemoveAll(work)
	if err := b.compile(work); err != nil {
		return "", err
	}
	if err := os.Rename(work, folder); err != nil {
		return "", fmt.Errorf("keep the emulated driver: %w", err)
	}
	return path, nil
}

// sweep removes libraries that were not used for long, and what was left of builds that
// were killed. That it cannot is no reason not to build.
func sweep(cache string) {
	folders, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	for _, folder := range folders {
		if info, err := folder.Info(); err == nil && folder.IsDir() && time.Since(info.ModTime()) > keptFor {
			_ = os.RemoveAll(filepath.Join(cache, folder.Name()))
		}
	}
}

// compile makes work/libcuda.so.1 and leaves nothing else in work.
func (b *build) compile(work string) error {
	include := []string{"-I" + filepath.Join(b.here, "src"), "-I" + filepath.Join(b.here, "..", "driver"), "-I" + filepath.Join(b.here, "..", "blaslt"), "-I" + filepath.Join(b.here, "..", "nvml"),
		"-I" + filepath.Join(b.here, "..", "driver", "testdata"), "-I" + filepath.Join(b.here, "..", "kernels")}
	var commands [][]string
	var objects []string
	add := func(source string, extra ...string) {
		object := filepath.Join(work, fmt.Sprintf("%d.o", len(objects)))
		objects = append(objects, object)
		command := append(append(append([]string{}, flags...), include...), extra...)
		commands = append(commands, append(command, "-c", "-o", object, source))
	}
	for _, source := range b.sources {
		add(source)
	}
	for _, kernel := range b.kernels {
		add(kernel, "-x", "c++", "-include", "emulation.h")
	}
	if err := b.run(commands); err != nil {
		return err
	}
	link := append([]string{"-shared", "-pthread", "-Wl,-z,defs", "-o", filepath.Join(work, "libcuda.so.1")}, objects...)
	if err := b.run([][]string{link}); err != nil {
		return err
	}
	for _, object := range objects {
		if err := os.Remove(object); err != nil {
			return err
		}
	}
	return nil
}

// run runs the compiler, as many at once as there are processors, and waits for all.
func (b *build) run(commands [][]string) error {
	failures := make([]error, len(commands))
	slots := make(chan struct{}, runtime.NumCPU())
	var wait sync.WaitGroup
	for i, arguments := range commands {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var said bytes.Buffer
			command := exec.Command(b.compiler, arguments...)
			command.Stdout, command.Stderr = io.Discard, &said
			if err := command.Run(); err != nil {
				failures[i] = fmt.Errorf("compile the emulated driver: %w: %s %s\n%s", err, b.compiler, strings.Join(arguments, " "), said.String())
			}
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}
