package packedweights_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/packedweights"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var identity = packedweights.Identity{Digest: "0123456789abcdef0123456789abcdef", Type: "int8", Packing: 3, Shape: "hidden=8 layers=2"}

// sizes are parts of some chunks together, whose ends are not the parts'.
var sizes = []int{5, 1 << 20, 64, 3, 1<<20 + 1<<19, 0, 700, 7, 1<<18 + 1}

func zeros(sizes []int) [][]byte {
	parts := make([][]byte, len(sizes))
	for i, n := range sizes {
		parts[i] = make([]byte, n)
	}
	return parts
}

func random(seed uint64, sizes []int) [][]byte {
	parts := zeros(sizes)
	source := rand.NewChaCha8([32]byte{byte(seed)})
	for _, p := range parts {
		_, _ = source.Read(p)
	}
	return parts
}

func silent(int64, int64) {}

func write(t testing.TB, f packedweights.Folder, parts [][]byte) string {
	t.Helper()
	if err := f.Write(t.Context(), identity, parts, silent); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(f.Path, identity.FileName())
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

// TestRoundTrip: what was written is read, by one thread or many, with all of the
// progress, and nobody else may read the files.
func TestRoundTrip(t *testing.T) {
	for _, sizes := range [][]int{sizes, {1}, {1 << 20}, {1 << 21, 1}, {}} {
		for _, threads := range []int{0, 1, 3} {
			f := packedweights.Folder{Path: filepath.Join(t.TempDir(), "a", "b"), Threads: threads}
			want := random(1, sizes)
			var total int64
			for _, n := range sizes {
				total += int64(n)
			}
			progress := func(last *int64) func(done, all int64) {
				return func(done, all int64) {
					if done <= *last || all != total {
						t.Errorf("progress went from %d to %d of %d", *last, done, all)
					}
					*last = done
				}
			}
			var written, read int64
			if err := f.Write(t.Context(), identity, want, progress(&written)); err != nil {
				t.Fatal(err)
			}
			got := zeros(sizes)
			if err := f.Read(t.Context(), identity, got, progress(&read)); err != nil {
				t.Fatal(err)
			}
			if !equal(got, want) {
				t.Errorf("%d parts, %d threads: other bytes were read", len(sizes), threads)
			}
			if written != total || read != total {
				t.Errorf("progress ended at %d and %d of %d", written, read, total)
			}
			for path, mode := range map[string]fs.FileMode{f.Path: 0o700, filepath.Join(f.Path, identity.FileName()): 0o600} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%s has mode %v (%v), want %v", path, info.Mode(), err, mode)
				}
			}
			if found := names(t, f.Path); len(found) != 1 {
				t.Errorf("the folder has %v", found)
			}
		}
	}
}

func TestNoFile(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if err := (packedweights.Folder{Path: dir}).Read(t.Context(), identity, zeros(sizes), silent); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("reading what is not there gave %v", err)
		}
	}
}

// TestDamage changes one byte anywhere, or the length: each is found, and what was
// read until then is zero again.
func TestDamage(t *testing.T) {
	f := packedweights.Folder{Path: t.TempDir(), Threads: 2}
	path := write(t, f, random(1, sizes))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	zero := zeros(sizes)
	refused := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got := zeros(sizes)
		err := f.Read(t.Context(), identity, got, silent)
		switch {
		case err == nil:
			t.Errorf("%s: read", what)
		case errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path):
			t.Errorf("%s: the error is %q", what, err)
		}
		if !equal(got, zero) {
			t.Errorf("%s: what was read stays", what)
		}
	}
	r := rand.New(rand.NewPCG(2, 2))
	positions := []int{0, 8, 12, 16, 23, 24, 4091, 4092, 4095, 4096, len(whole) - 1}
	for range 100 {
		positions = append(positions, r.IntN(len(whole)), r.IntN(4096))
	}
	for _, at := range positions {
		data := slices.Clone(whole)
		data[at] ^= byte(1 + r.IntN(255))
		refused(fmt.Sprintf("byte %d", at), data)
	}
	for _, n := range []int{0, 1, 23, 24, 4095, 4096, 4097, len(whole) - 1, r.IntN(len(whole))} {
		refused(fmt.Sprintf("the first %d bytes", n), whole[:n])
	}
	refused("a byte more", append(slices.Clone(whole), 0))
}

// TestForeign: a whole file of other weights under this name is refused.
func TestForeign(t *testing.T) {
	for _, c := range []struct {
		name  string
		other func(*packedweights.Identity)
		sizes []int
	}{
		{"model", func(id *packedweights.Identity) { id.Digest = "ff" }, sizes},
		{"type", func(id *packedweights.Identity) { id.Type = "bf16" }, sizes},
		{"packing", func(id *packedweights.Identity) { id.Packing++ }, sizes},
		{"shape", func(id *packedweights.Identity) { id.Shape = "hidden=9" }, sizes},
		{"length", func(*packedweights.Identity) {}, []int{77}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := packedweights.Folder{Path: t.TempDir()}
			other := identity
			c.other(&other)
			if err := f.Write(t.Context(), other, random(1, c.sizes), silent); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(f.Path, other.FileName()), filepath.Join(f.Path, identity.FileName())); err != nil {
				t.Fatal(err)
			}
			if err := f.Read(t.Context(), identity, zeros(sizes), silent); err == nil || !strings.Contains(err.Error(), "it holds ") {
				t.Errorf("reading it gave %v", err)
			}
		})
	}
}

// TestNotAFile: what is there but no file does not hang or break anything.
func TestNotAFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		f := packedweights.Folder{Path: t.TempDir()}
		if err := put(filepath.Join(f.Path, identity.FileName())); err != nil {
			t.Fatal(err)
		}
		if err := f.Read(t.Context(), identity, zeros(sizes), silent); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: reading it gave %v", name, err)
		}
	}
}

func TestIdentityErrors(t *testing.T) {
	f := packedweights.Folder{Path: t.TempDir()}
	for _, id := range []packedweights.Identity{
		{}, {Digest: "aa"}, {Type: "bf16"}, {Digest: "../aa", Type: "bf16"}, {Digest: "aa", Type: "b/f"},
		{Digest: "aa", Type: "bf16", Shape: strings.Repeat("x", 2000)},
	} {
		if err := f.Write(t.Context(), id, random(1, sizes), silent); err == nil {
			t.Errorf("%v was written", id)
		}
		if err := f.Read(t.Context(), id, zeros(sizes), silent); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("reading %v gave %v", id, err)
		}
	}
	if found := names(t, f.Path); len(found) != 0 {
		t.Errorf("the folder has %v", found)
	}
}

// limited is a file on a disk that fills up, or whose last writes fail.
type limited struct {
	*os.File
	left        int
	sync, close error
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		n, _ := l.File.Write(p[:l.left])
		l.left = 0
		return n, syscall.ENOSPC
	}
	l.left -= len(p)
	return l.File.Write(p)
}

func (l *limited) Sync() error  { return errors.Join(l.File.Sync(), l.sync) }
func (l *limited) Close() error { return errors.Join(l.File.Close(), l.close) }

// TestFailedWrite: a write that fails leaves what was there before, and nothing else.
func TestFailedWrite(t *testing.T) {
	const all = 1 << 30
	for _, c := range []struct {
		name string
		file limited
		free int64
		want error
	}{
		{"full at once", limited{left: 0}, all, syscall.ENOSPC},
		{"full in the header", limited{left: 100}, all, syscall.ENOSPC},
		{"full later", limited{left: 1 << 20}, all, syscall.ENOSPC},
		{"sync fails", limited{left: all, sync: syscall.EIO}, all, syscall.EIO},
		{"close fails", limited{left: all, close: syscall.EDQUOT}, all, syscall.EDQUOT},
		{"too little room", limited{left: all}, 1 << 20, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := packedweights.Folder{Path: t.TempDir()}
			before := random(1, sizes)
			write(t, f, before)
			f.Free = func(string) (int64, error) { return c.free, nil }
			f.Create = func(dir, pattern string) (packedweights.File, error) {
				file, err := os.CreateTemp(dir, pattern)
				c.file.File = file
				return &c.file, err
			}
			err := f.Write(t.Context(), identity, random(2, sizes), silent)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the write gave %v, want %v", err, c.want)
			}
			got := zeros(sizes)
			if err := f.Read(t.Context(), identity, got, silent); err != nil || !equal(got, before) {
				t.Errorf("what was there before is gone: %v", err)
			}
			if found := names(t, f.Path); len(found) != 1 {
				t.Errorf("the folder has %v", found)
			}
		})
	}
}

// TestCancel ends reads and writes after their first chunk.
func TestCancel(t *testing.T) {
	f := packedweights.Folder{Path: t.TempDir(), Threads: 1}
	do := func(what string, run func(ctx context.Context, progress func(done, total int64)) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last int64
		err := run(ctx, func(done, total int64) {
			cancel()
			if last = done; done == total {
				t.Errorf("%s: went on to the end", what)
			}
		})
		if !errors.Is(err, context.Canceled) || last == 0 {
			t.Errorf("%s: gave %v after %d bytes", what, err, last)
		}
	}
	large := []int{8 << 20}
	do("write", func(ctx context.Context, progress func(done, total int64)) error {
		return f.Write(ctx, identity, random(1, large), progress)
	})
	if found := names(t, f.Path); len(found) != 0 {
		t.Errorf("the folder has %v", found)
	}
	write(t, f, random(1, large))
	do("read", func(ctx context.Context, progress func(done, total int64)) error {
		return f.Read(ctx, identity, zeros(large), progress)
	})
}

// TestSweep: what a dead writer left goes after an hour, what lives or is not ours
// stays.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	f := packedweights.Folder{Path: dir, Now: func() time.Time { return now }}
	var left string
	f.Create = func(dir, pattern string) (packedweights.File, error) {
		file, err := os.CreateTemp(dir, pattern)
		left = filepath.Base(file.Name())
		return file, err
	}
	write(t, f, random(1, sizes))
	for _, name := range []string{left, "other.tmp", ".other.tmp", ".x.packed.folder.tmp/", "old-bf16-1.packed"} {
		var err error
		if folder, is := strings.CutSuffix(name, "/"); is {
			err = os.Mkdir(filepath.Join(dir, folder), 0o700)
		} else {
			err = os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := names(t, dir)
	now = now.Add(59 * time.Minute)
	read := func() {
		if err := f.Read(t.Context(), identity, zeros(sizes), silent); err != nil {
			t.Error(err)
		}
	}
	if read(); !slices.Equal(names(t, dir), before) {
		t.Errorf("before an hour %v became %v", before, names(t, dir))
	}
	now = now.Add(2 * time.Minute)
	want := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return name == left })
	if read(); !slices.Equal(names(t, dir), want) {
		t.Errorf("after an hour there are %v, want %v", names(t, dir), want)
	}
}

// TestAtOnce: writers and readers of one name at a time; a reader gets what one of the
// writers wrote, whole.
func TestAtOnce(t *testing.T) {
	f := packedweights.Folder{Path: t.TempDir(), Threads: 2}
	versions := [][][]byte{random(1, sizes), random(2, sizes), random(3, sizes)}
	write(t, f, versions[0])
	var all sync.WaitGroup
	for _, parts := range versions {
		all.Go(func() {
			for range 10 {
				if err := f.Write(context.Background(), identity, parts, silent); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 20 {
				got := zeros(sizes)
				if err := f.Read(context.Background(), identity, got, silent); err != nil {
					t.Error(err)
				} else if !slices.ContainsFunc(versions, func(v [][]byte) bool { return equal(v, got) }) {
					t.Error("what was read is no one's")
				}
			}
		})
	}
	all.Wait()
	if found := names(t, f.Path); len(found) != 1 {
		t.Errorf("the folder has %v", found)
	}
}
