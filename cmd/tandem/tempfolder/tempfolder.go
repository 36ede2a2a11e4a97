// Package tempfolder makes folders for temporary files of a process. Remove deletes a folder;
// after SIGKILL the next process of the same user that makes one does.
//
// The packages of cmd/tandem import it. A Folder holds a file that is locked while the process
// lives; the kernel drops the lock at its end. Folders without such a file, or with a locked
// one, are never removed. The package starts no goroutine.
package tempfolder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	prefix   = "tandem-"
	lockName = ".tandem-in-use"
	// leastAge is how old a lock has to be to count as left behind: a younger one may be
	// about to be locked.
	leastAge = time.Minute
	// most bounds how many names are looked at, and mostRemoved how many folders are
	// removed, at one start.
	most, mostRemoved = 16384, 64
)

// Folder is a private folder for temporary files.
type Folder struct {
	// Path of the folder, in the one for temporary files.
	Path string

	remove func() error
}

// Make makes a folder of which only this user reads, named for its kind, after removing
// those that processes of this user left behind when they were killed.
func Make(kind string) (*Folder, error) {
	removeLeft(os.TempDir())
	path, err := os.MkdirTemp("", prefix+kind+"-") // mode 0700
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		if lock != nil {
			_ = lock.Close()
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), os.RemoveAll(path))
	}
	f := &Folder{Path: path}
	f.remove = sync.OnceValue(func() error {
		return errors.Join(os.RemoveAll(path), lock.Close())
	})
	return f, nil
}

// Remove removes the folder with all that is in it. Calling it again gives the same
// error. It is safe on a nil Folder.
func (f *Folder) Remove() error {
	if f == nil {
		return nil
	}
	return f.remove()
}

// removeLeft removes what was left behind in dir. What cannot be removed stays: nobody
// is to be kept from starting by it.
func removeLeft(dir string) {
	open, err := os.Open(dir)
	if err != nil {
		return
	}
	defer open.Close()
	names, _ := open.Readdirnames(most)
	removed := 0
	for _, name := range names {
		if removed == mostRemoved {
			return
		}
		if strings.HasPrefix(name, prefix) && removeIfLeft(filepath.Join(dir, name)) {
			removed++
		}
	}
}

// removeIfLeft removes a folder, and no link to one, of this user, whose lock nobody
// holds any more.
func removeIfLeft(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || !isOwn(info) {
		return false
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer lock.Close()
	file, err := lock.Stat()
	if err != nil || !file.Mode().IsRegular() || !isOwn(file) || time.Since(file.ModTime()) < leastAge {
		return false
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	return os.RemoveAll(path) == nil // it follows no links
}

func isOwn(info os.FileInfo) bool {
	status, is := info.Sys().(*syscall.Stat_t)
	return is && int(status.Uid) == os.Getuid()
}
