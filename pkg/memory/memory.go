// Package memory finds out how much memory this process may still take, what the
// system has left and what limits leave it, and keeps Go's heap within that.
//
// The binary and what sizes itself by memory may import it. It owns Go's memory limit and GOGC of the
// process. CollectSeldom starts a goroutine, until it is stopped.
package memory

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pkg/cgroup"
)

// Left is what a process may still take.
type Left struct {
	Bytes int64
	// By names the file whose limit is the narrowest.
	By string
}

// ProcessBytes is what a process takes beside weights, workspaces and KV pages: Go's
// heap, stacks, buffers of connections, the embedded servers. `up` was seen to have 120 to
// 150 MiB when idle and 185 MiB with six clients whose prompts filled all KV pages.
// IdleProcessBytes is the least of that, of a worker that has just started.
const (
	ProcessBytes     = 192 << 20
	IdleProcessBytes = 64 << 20
)

// Available is the memory that this process may still take: the least of what the
// system has, what the limits of its control groups leave, where the page cache
// gives way, and what its address space can hold. known is false where no file
// of Linux's says, and the bytes are without end. root is the root of the file system.
func Available(root fs.FS) (left Left, known bool) {
	left.Bytes = math.MaxInt64
	atMost := func(bytes int64, by string) {
		if known = true; bytes < left.Bytes {
			left = Left{max(bytes, 0), by}
		}
	}
	system := values(root, "proc/meminfo")
	if kib, ok := system["MemAvailable:"]; ok {
		atMost(kib<<10, "MemAvailable in /proc/meminfo")
	}
	// Where the system lets nobody have more than it could keep, memory counts from
	// when it is asked for.
	if strict, ok := number(root, "proc/sys/vm/overcommit_memory"); ok && strict == 2 {
		atMost((system["CommitLimit:"]-system["Committed_AS:"])<<10, "CommitLimit in /proc/meminfo")
	}
	limits, _ := fs.ReadFile(root, "proc/self/limits")
	for line := range strings.Lines(string(limits)) {
		soft, ok := strings.CutPrefix(line, "Max address space")
		if !ok {
			continue
		}
		if f := strings.Fields(soft); len(f) > 0 {
			if bytes, err := strconv.ParseInt(f[0], 10, 64); err == nil { // or "unlimited"
				atMost(bytes-values(root, "proc/self/status")["VmSize:"]<<10, "the limit of the address space (ulimit -v)")
			}
		}
	}
	for version, dir := range cgroup.Folders(root, "memory") {
		if bytes, by, ok := filesOf[version].left(root, dir); ok {
			atMost(bytes, "/"+by)
		}
	}
	return left, known
}

// Resident is the memory that a process has resident; false where no file of Linux's says.
func Resident(root fs.FS, pid int) (bytes int64, known bool) {
	kib, known := values(root, fmt.Sprintf("proc/%d/status", pid))["VmRSS:"]
	return kib << 10, known
}

// groupFiles name where a version of control groups keeps what is asked of it here.
type groupFiles struct {
	limits   []string
	used     string
	inactive string // in memory.stat: cache that is given back first
}

var filesOf = map[int]groupFiles{
	1: {[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"},
	2: {[]string{"memory.max", "memory.high"}, "memory.current", "inactive_file"},
}

// left is what the limits of one group leave, and the file of the narrowest; false
// if it has none.
func (g groupFiles) left(root fs.FS, dir string) (bytes int64, by string, limited bool) {
	least := int64(math.MaxInt64)
	for _, name := range g.limits {
		name = path.Join(dir, name)
		if limit, ok := number(root, name); ok && limit < least { // or "max"
			least, by, limited = limit, name, true
		}
	}
	used, ok := number(root, path.Join(dir, g.used))
	if !limited || !ok {
		return 0, "", false
	}
	return least - max(used-values(root, path.Join(dir, "memory.stat"))[g.inactive], 0), by, true
}

// number is the only number in a file.
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// values are the numbers of a file whose lines begin with a name and a number.
func values(root fs.FS, name string) map[string]int64 {
	all := map[string]int64{}
	text, _ := fs.ReadFile(root, name)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				all[f[0]] = n
			}
		}
	}
	return all
}
