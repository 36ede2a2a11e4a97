package mesh

import (
	"fmt"
	"syscall"
)

// Files that are open at once, sockets among them: those of a process before any request,
// most of which etcd sets aside for itself, and those of each part.
const (
	filesOfProcess = 200
	filesOfPart    = 8
)

// checkOpenFiles says how many files a process with so many parts has to be allowed to open,
// if limit is less.
func checkOpenFiles(limit uint64, parts int) error {
	if least := LeastOpenFiles(parts); limit < least {
		return fmt.Errorf("this process may have only %d files open at once, and needs %d or more: raise the limit, such as by 'ulimit -n 65536', and start again", limit, least)
	}
	return nil
}

// LeastOpenFiles is how many files a process with so many parts opens before any request.
func LeastOpenFiles(parts int) uint64 { return uint64(filesOfProcess + filesOfPart*parts) }

// OpenFilesLimit is how many files this process may have open at once. Go has raised it as
// far as it may be raised.
func OpenFilesLimit() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return limit.Cur, nil
}
