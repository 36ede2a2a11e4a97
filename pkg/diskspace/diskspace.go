// Package diskspace finds how much may still be written to a disk.
//
// Any package may import it. It owns nothing and starts no goroutines.
package diskspace

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// Free is how many bytes this user may still write to the disk of a path.
func Free(path string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, fmt.Errorf("find the free space of %s: %w", path, err)
	}
	return Available(&stat), nil
}

// Available is how many bytes of a file system this user may still write. Its blocks are counted
// in units of Frsize (statvfs(3)). Bsize is the best size of a transfer, which is larger on some
// file systems, such as those of FUSE; it is the unit where Frsize is 0.
func Available(stat *unix.Statfs_t) int64 {
	return int64(stat.Bavail) * cmp.Or(stat.Frsize, stat.Bsize)
}
