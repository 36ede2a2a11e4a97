package mesh

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

// socketFolder is the private folder of a process for Unix sockets, made when the
// first is needed. It is safe for concurrent use.
type socketFolder struct {
	mu     sync.Mutex
	folder *tempfolder.Folder // nil: not made yet
	made   int                // sockets
}

// listen listens on a socket of the given path, or with kvtransfer.SocketAuto on one in the
// folder.
func (f *socketFolder) listen(socket string) (net.Listener, error) {
	if socket != kvtransfer.SocketAuto {
		return kvtransfer.Listen(api.UnixScheme + socket)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.folder == nil {
		folder, err := tempfolder.Make("kv")
		if err != nil {
			return nil, fmt.Errorf("make a folder for sockets: %w", err)
		}
		f.folder = folder
	}
	listener, err := kvtransfer.Listen(api.UnixScheme + filepath.Join(f.folder.Path, fmt.Sprintf("%d.sock", f.made+1)))
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
	folder := f.folder
	f.folder = nil
	if err := folder.Remove(); err != nil {
		return fmt.Errorf("remove the folder of sockets: %w", err)
	}
	return nil
}
