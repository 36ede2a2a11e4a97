package memory_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tandem-serving/tandem/pkg/memory"
)

func TestAvailable(t *testing.T) {
	const (
		mib  = 1 << 20
		info = "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\nCommitLimit:    3145728 kB\nCommitted_AS:   1048576 kB\n"
	)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64 // MiB; -1: not known
		by    string
	}{
		{"not Linux", nil, -1, ""},
		{"no limits", map[string]string{"proc/meminfo": info, "proc/sys/vm/overcommit_memory": "0\n", "proc/self/cgroup": "0::/\n"}, 4096, "MemAvailable"},
		{"no more than could be kept", map[string]string{"proc/meminfo": info, "proc/sys/vm/overcommit_memory": "2\n"}, 2048, "CommitLimit"},
		{"an address space", map[string]string{
			"proc/meminfo":     info,
			"proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \nMax address space         2147483648           unlimited            bytes     \n",
			"proc/self/status": "Name:\ttandem\nVmSize:\t 1048576 kB\n",
		}, 1024, "address space"},
		{"an address space without end", map[string]string{
			"proc/meminfo": info, "proc/self/limits": "Max address space         unlimited            unlimited            bytes     \n",
		}, 4096, "MemAvailable"},
		{"a container, much of whose memory is cache", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "2147483648\n", "sys/fs/cgroup/memory.current": "2147479552\n",
			"sys/fs/cgroup/memory.stat": "anon 4096\ninactive_file 1073741824\nactive_file 4096\n",
		}, 1024, "/sys/fs/cgroup/memory.max"},
		{"a group without a limit in one with", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "max\n", "sys/fs/cgroup/a.slice/b.service/memory.current": "1\n",
			"sys/fs/cgroup/a.slice/memory.max": "max\n", "sys/fs/cgroup/a.slice/memory.high": "1073741824\n", "sys/fs/cgroup/a.slice/memory.current": "536870912\n",
		}, 512, "/sys/fs/cgroup/a.slice/memory.high"},
		{"a group that is full", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n", "sys/fs/cgroup/memory.current": "1073745920\n",
		}, 0, "/sys/fs/cgroup/memory.max"},
		{"version 1, in a container that has the host's path", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/docker/0123\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "805306368\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 268435456\n",
		}, 512, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
		{"version 1 without a limit", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "805306368\n",
		}, 4096, "MemAvailable"},
		{"files that say something else", map[string]string{"proc/meminfo": "MemAvailable: much\n:\n", "proc/self/cgroup": "x\n::\n0::\n"}, -1, ""},
	} {
		root := fstest.MapFS{}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		got, known := memory.Available(root)
		if known != (c.want >= 0) || known && (got.Bytes/mib != c.want || !strings.Contains(got.By, c.by)) {
			t.Errorf("%s: %d MiB by %s, known %t, want %d by %s", c.name, got.Bytes/mib, got.By, known, c.want, c.by)
		}
	}
}

func TestResident(t *testing.T) {
	root := fstest.MapFS{
		"proc/7/status": {Data: []byte("Name:\ttandem\nVmHWM:\t   40960 kB\nVmRSS:\t   20480 kB\n")},
		"proc/8/status": {Data: []byte("Name:\tkworker\n")}, // the kernel's threads have no memory of their own
	}
	for pid, want := range map[int]int64{7: 20 << 20, 8: 0, 9: 0} {
		if got, known := memory.Resident(root, pid); got != want || known != (want > 0) {
			t.Errorf("%d: %d, %t, want %d", pid, got, known, want)
		}
	}
}
