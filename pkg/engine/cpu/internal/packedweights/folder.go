package packedweights

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/diskspace"
)

// suffix ends the names of files of weights; those being written begin with a dot and
// end with another.
const (
	suffix     = ".packed"
	temporary  = ".tmp"
	staleAfter = time.Hour
)

// Folder is where files of weights are. It is safe for concurrent use, by any number
// of processes.
type Folder struct {
	// Path is the folder's; Write makes it.
	Path string
	// Threads is how many goroutines read and check at a time; less than 1 is 1.
	Threads int

	// Tests replace what the system does; nil is the system.
	Create func(dir, pattern string) (File, error) // os.CreateTemp
	Free   func(dir string) (int64, error)         // bytes that may still be written
	Now    func() time.Time
}

// File is a file being written.
type File interface {
	io.Writer
	Name() string
	Sync() error
	Close() error
}

func (f Folder) complete() Folder {
	if f.Create == nil {
		f.Create = func(dir, pattern string) (File, error) { return os.CreateTemp(dir, pattern) } // of mode 0600
	}
	if f.Free == nil {
		f.Free = diskspace.Free
	}
	if f.Now == nil {
		f.Now = time.Now
	}
	return f
}

// sweep removes what a process left behind that ended while it wrote: files that
// nobody has written to for an hour. A writer that lives syncs far more often.
// What cannot be removed takes disk space and does no other harm.
func (f Folder) sweep() {
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, ".") || !strings.Contains(name, suffix+".") || !strings.HasSuffix(name, temporary) {
			continue
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && f.Now().Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(f.Path, name))
		}
	}
}
