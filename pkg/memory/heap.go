package memory

import (
	"io/fs"
	"log/slog"
	"math"
	"path"
	"runtime/debug"

	"github.com/tandem-serving/tandem/pkg/cgroup"
)

const (
	// leastHeap is the least that Go's heap is limited to, bytes: under it the
	// collector would run all the time, and the process be as good as dead.
	leastHeap = 64 << 20
	// unlimited is what a limit is at least that is none: control groups of version
	// 1 write a number near 1<<63.
	unlimited = 1 << 60
)

// KeepHeap limits Go's heap to what outside bytes leave of the container's limit:
// weights, workspaces and KV pages, which the process has or may come to have where
// the collector does not see them. Without it, a process is killed for garbage that
// could have been collected. Where there is no limit, or the user set one for Go
// (GOMEMLIMIT), it does nothing. root is the root of the file system.
func KeepHeap(root fs.FS, outside int64, logger *slog.Logger) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	limit, is := Limit(root)
	if !is {
		return
	}
	heap := Heap(limit, outside)
	debug.SetMemoryLimit(heap)
	sizes := []any{slog.Int64("limit_bytes", limit), slog.Int64("engine_bytes", outside), slog.Int64("heap_bytes", heap)}
	if outside+leastHeap > limit {
		logger.Warn("weights, workspaces and KV pages may exceed the container's memory, and it would be killed: raise its limit or lower --kv-memory", sizes...)
		return
	}
	logger.Info("heap is limited by the container's memory", sizes...)
}

// Heap is the limit of Go's heap, bytes: nine tenths of what outside leaves, since
// the stacks of threads and the kernel's buffers count too, and leastHeap at least.
func Heap(limit, outside int64) int64 {
	return max((limit-outside)/10*9, leastHeap)
}

// Limit is the memory that this process's control groups allow it, used or not,
// bytes; false if they set no limit.
func Limit(root fs.FS) (bytes int64, limited bool) {
	bytes = unlimited
	for version, dir := range cgroup.Folders(root, "memory") {
		for _, name := range filesOf[version].limits {
			if limit, ok := number(root, path.Join(dir, name)); ok && limit > 0 {
				bytes = min(bytes, limit)
			}
		}
	}
	return bytes, bytes < unlimited
}
