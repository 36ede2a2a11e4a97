// Package cgroup finds the control groups that bound this process.
//
// Anyone may import it. It owns nothing and starts no goroutines.
package cgroup

import (
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// Folders are the folders of the groups whose controller ("cpu", "memory") bounds this process, each
// with its version, 1 or 2. A group has at most what those above it have. In a container the path may be
// the host's; then the root is its own. root is the root of the file system.
func Folders(root fs.FS, controller string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		memberships, _ := fs.ReadFile(root, "proc/self/cgroup")
		for line := range strings.Lines(string(memberships)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) != 3 {
				continue
			}
			version, mount := 2, "sys/fs/cgroup"
			switch {
			case f[0] == "0" && f[1] == "":
			case slices.Contains(strings.Split(f[1], ","), controller):
				version, mount = 1, path.Join(mount, controller)
			default:
				continue
			}
			for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
				if !yield(version, path.Join(mount, dir)) {
					return
				}
				if dir == "/" {
					break
				}
			}
		}
	}
}
