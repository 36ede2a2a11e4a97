package mesh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/services/kvtransfer"
)

const (
	// socketFolders begins the names of the folders in which sockets lie.
	socketFolders = "tandem-kv-"
	// socketAge is how old a socket has to be to count as left behind: a younger one
	// may be about to be listened on.
	socketAge = time.Minute
)

// socketFolder is the private folder of a process for Unix sockets, made when the
// first is needed. It is safe for concurrent use.
type socketFolder struct {
	mu   sync.Mutex
	path string // empty: not made yet
	made int    // sockets
}

// listen listens on a socket of the given path, or with SocketAuto on one in the
// folder.
func (f *socketFolder) listen(socket string) (net.Listener, error) {
	if socket != SocketAuto {
		return kvtransfer.Listen(unixScheme + socket)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		removeLeft(os.TempDir())
		path, err := os.MkdirTemp("", socketFolders) // mode 0700
		if err != nil {
			return nil, fmt.Errorf("make a folder for sockets: %w", err)
		}
		f.path = path
	}
	listener, err := kvtransfer.Listen(unixScheme + filepath.Join(f.path, fmt.Sprintf("%d.sock", f.made+1)))
	if err != nil {
		return nil, err
	}
	f.made++
	return listener, nil
}

// close removes the folder, sockets that still listen included.
func (f *socketFolder) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil
	}
	path := f.path
	f.path = ""
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove the folder of sockets: %w", err)
	}
	return nil
}

// removeLeft removes the folders below dir that processes of this user left behind
// when they were killed: those with a socket, none of which is listened on. What
// cannot be removed stays.
func removeLeft(dir string) {
	folders, err := filepath.Glob(filepath.Join(dir, socketFolders+"*"))
	if err != nil { // only of a malformed pattern, such as a folder with a bracket in its name
		return
	}
	for _, folder := range folders {
		if isOwn(folder) && isLeft(folder) {
			_ = os.RemoveAll(folder)
		}
	}
}

// isOwn says whether the path is a folder, and no link to one, of this user.
func isOwn(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	status, is := info.Sys().(*syscall.Stat_t)
	return is && int(status.Uid) == os.Getuid()
}

func isLeft(folder string) bool {
	sockets, err := filepath.Glob(filepath.Join(folder, "*.sock"))
	if err != nil || len(sockets) == 0 {
		return false
	}
	for _, socket := range sockets {
		info, err := os.Lstat(socket)
		if err != nil || time.Since(info.ModTime()) < socketAge {
			return false
		}
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err == nil {
			_ = conn.Close()
			return false
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}
