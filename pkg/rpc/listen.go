package rpc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
)

// maxUnixPath is the longest path that a socket address holds on Linux, in
// bytes, its terminating zero left out.
const maxUnixPath = 107

// Listen listens on "host:port" (port 0: any that is free) or "unix:///path". A
// socket file that a dead process left behind is replaced; one that answers is
// not. The error is one line that says what to do. The caller closes the
// listener, or hands it to Serve, which does.
func Listen(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, api.UnixScheme); ok {
		listener, err := ListenUnix("unix", path)
		if err != nil {
			return nil, err
		}
		return listener, nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: give host:port or unix:///path", address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return nil, explained{fmt.Sprintf("listen on %s: %q is not a port: choose one from 0 (any that is free) to 65535", address, port), err}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, explainListen(address, err)
	}
	return listener, nil
}

// ListenUnix is Listen on a socket of the given path, of network "unix" or "unixpacket".
func ListenUnix(network, path string) (*net.UnixListener, error) {
	address, at := api.UnixScheme+path, &net.UnixAddr{Name: path, Net: network}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("listen on %q: the path must be absolute, as in unix:///run/tandem.sock", address)
	}
	if len(path) > maxUnixPath {
		return nil, fmt.Errorf("listen on %q: a socket's path has at most %d bytes: choose a shorter one", address, maxUnixPath)
	}
	listener, err := net.ListenUnix(network, at)
	if errors.Is(err, syscall.EADDRINUSE) && isStaleSocket(network, path) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: remove the socket of a dead process: %w", address, err)
		}
		listener, err = net.ListenUnix(network, at)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		if info, statErr := os.Lstat(path); statErr == nil && info.Mode()&os.ModeSocket == 0 {
			return nil, explained{fmt.Sprintf("listen on %s: the path exists and is not a socket: remove it, or choose another path", address), err}
		}
	}
	if err != nil {
		return nil, explainListen(address, err)
	}
	return listener, nil
}

// isStaleSocket says whether the path is a socket that nobody listens on.
func isStaleSocket(network, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	conn, err := net.DialTimeout(network, path, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func explainListen(address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return explained{fmt.Sprintf("listen on %s: the address is already in use: stop the process that listens there, or choose another address", address), err}
	case errors.Is(err, syscall.EACCES):
		return explained{fmt.Sprintf("listen on %s: not allowed: choose a port above 1023 or a folder that you may write to", address), err}
	case errors.Is(err, syscall.ENOENT):
		return explained{fmt.Sprintf("listen on %s: its folder does not exist: create it first (mkdir -p %s), or choose another path", address, filepath.Dir(strings.TrimPrefix(address, api.UnixScheme))), err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return explained{fmt.Sprintf("listen on %s: this machine does not have that address: choose one of its own, or 0.0.0.0", address), err}
	}
	if unknown, is := errors.AsType[*net.DNSError](err); is {
		return explained{fmt.Sprintf("listen on %s: cannot find the host %q: choose an address of this machine, or 0.0.0.0", address, unknown.Name), err}
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

// explained says in its own words what its cause says in the system's.
type explained struct {
	text  string
	cause error
}

func (e explained) Error() string { return e.text }

func (e explained) Unwrap() error { return e.cause }
