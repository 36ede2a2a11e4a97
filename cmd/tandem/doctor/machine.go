package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/cgroup"
	"github.com/tandem-serving/tandem/pkg/memory"
)

// Machine is what is known of this machine.
type Machine struct {
	// Root is the root of the file system, for what Linux says of itself.
	Root fs.FS
	// Processors are those that this process may use, and Threads those that Go uses.
	Processors, Threads int
	// Instructions are the sets that the CPU engine has kernels for here, the best one first.
	Instructions []string
	// OpenFiles is how many files a process may open. A mesh needs LeastFiles, and a router with
	// all its connections RouterFiles.
	OpenFiles, LeastFiles, RouterFiles uint64
	// DataDir is the folder of the data of the etcd of 'tandem up', whose disk needs LeastFree
	// bytes. Free says how many it has. Empty: TempDir, which matters only if 'up' runs here.
	DataDir   string
	TempDir   string
	LeastFree int64
	Free      func(dir string) (int64, error)
}

// routerBytes is the memory of a router with its defaults; docs/deploying.md adds it up.
const routerBytes = 1 << 30

// Check looks at the machine.
func (m Machine) Check(context.Context) []Check {
	checks := []Check{m.processors(), m.instructions()}
	for _, look := range []func() (Check, bool){m.hugePages, m.memory} {
		if c, known := look(); known {
			checks = append(checks, c)
		}
	}
	return append(checks, m.openFiles(), m.disk())
}

func (m Machine) processors() Check {
	c := Check{Name: "processors", Status: OK, Detail: fmt.Sprintf("%d", m.Processors)}
	limit, limited := processorLimit(m.Root)
	if limited {
		c.Detail += fmt.Sprintf(", of which a limit leaves %.4g", limit)
	}
	switch {
	case limited && limit != math.Trunc(limit):
		c.Status, c.Advice = Warning, "give the container whole processors: the system stops a worker's threads for the rest of each period"
	case m.Threads > m.Processors || limited && float64(m.Threads) > max(limit, 2): // Go takes two at least under a limit
		c.Status, c.Detail = Warning, fmt.Sprintf("%s, for %d threads", c.Detail, m.Threads)
		c.Advice = "unset GOMAXPROCS: more threads than processors are slower"
	}
	return c
}

// processorLimit is the least number of processors' time that the control groups of this process
// allow; false: any.
func processorLimit(root fs.FS) (least float64, limited bool) {
	for version, dir := range cgroup.Folders(root, "cpu") {
		quota, period, _ := strings.Cut(text(root, path.Join(dir, "cpu.max")), " ")
		if version == 1 {
			quota, period = text(root, path.Join(dir, "cpu.cfs_quota_us")), text(root, path.Join(dir, "cpu.cfs_period_us"))
		}
		q, err := strconv.ParseFloat(quota, 64) // or "max"
		p, err2 := strconv.ParseFloat(period, 64)
		if err == nil && err2 == nil && q > 0 && p > 0 && (!limited || q/p < least) {
			least, limited = q/p, true
		}
	}
	return least, limited
}

// text is what a small file has; empty: it is not there.
func text(root fs.FS, name string) string {
	read, _ := fs.ReadFile(root, name)
	return strings.TrimSpace(string(read))
}

func (m Machine) instructions() Check {
	if len(m.Instructions) > 1 {
		return Check{Name: "instructions", Status: OK, Detail: "the CPU engine uses " + m.Instructions[0]}
	}
	return Check{
		Name: "instructions", Status: Warning, Detail: "the CPU engine has no kernels for this processor but the portable ones",
		Advice: "run workers with a GPU, or on a processor with AVX2, AVX-512 or AMX",
	}
}

func (m Machine) hugePages() (c Check, known bool) {
	_, setting, known := strings.Cut(text(m.Root, "sys/kernel/mm/transparent_hugepage/enabled"), "[")
	setting, _, _ = strings.Cut(setting, "]")
	c = Check{Name: "huge pages", Status: OK, Detail: setting}
	if setting == "never" {
		c.Status, c.Advice = Warning, "weights and KV get pages of 4 KiB, which are slower: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
	}
	return c, known
}

// memory judges a container's limit by all that it allows: a part that runs in it has most of that.
func (m Machine) memory() (Check, bool) {
	left, known := memory.Available(m.Root)
	bytes, found := left.Bytes, fmt.Sprintf("%s left by %s", bytesize.Text(left.Bytes), left.By)
	if limit, is := memory.Limit(m.Root); is {
		bytes, found = limit, fmt.Sprintf("the container may have %s", bytesize.Text(limit))
	}
	c := Check{Name: "memory", Status: OK, Detail: found}
	switch {
	case bytes < memory.ProcessBytes:
		c.Status, c.Advice = Failed, fmt.Sprintf("free some, or raise the limit: a process takes %s besides weights and KV", bytesize.Text(memory.ProcessBytes))
	case bytes < routerBytes:
		c.Status, c.Advice = Warning, "free some, or raise the limit: a router needs 1 GiB, and so does a worker besides weights and KV"
	}
	return c, known
}

func (m Machine) openFiles() Check {
	c := Check{Name: "open files", Status: OK, Detail: fmt.Sprintf("at most %d", m.OpenFiles), Advice: "raise the limit, such as by 'ulimit -n 65536'"}
	switch {
	case m.OpenFiles < m.LeastFiles:
		c.Status, c.Detail = Failed, fmt.Sprintf("%s, and a mesh needs %d", c.Detail, m.LeastFiles)
	case m.OpenFiles < m.RouterFiles:
		c.Status, c.Detail = Warning, fmt.Sprintf("%s, and a router with all its connections needs %d", c.Detail, m.RouterFiles)
	default:
		c.Advice = ""
	}
	return c
}

func (m Machine) disk() Check {
	data, bad := m.DataDir, Failed
	if data == "" {
		data, bad = m.TempDir, Warning
	}
	dir := data
	for { // what is not there will be made
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			break
		}
		dir = filepath.Dir(dir)
	}
	c := Check{Name: "disk", Status: bad, Advice: "'tandem up' needs as --data-dir a folder that this user may write to, or may make"}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		c.Detail = fmt.Sprintf("etcd's data cannot be kept in %s (%v)", data, err)
		return c
	}
	free, err := m.Free(dir)
	if err != nil {
		c.Detail = fmt.Sprintf("the disk of %s cannot be looked at (%v)", dir, err)
		return c
	}
	c.Detail = fmt.Sprintf("%s free for etcd's data in %s", bytesize.Text(free), data)
	if free < m.LeastFree {
		c.Advice = fmt.Sprintf("free some space, or pass another --data-dir: the etcd of 'tandem up' needs %s", bytesize.Text(m.LeastFree))
		return c
	}
	c.Status, c.Advice = OK, ""
	return c
}
