package doctor_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
)

// system is what Linux says of itself: files by name.
func system(files map[string]string) fs.FS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestMachine(t *testing.T) {
	const meminfo, group, enabled = "proc/meminfo", "proc/self/cgroup", "sys/kernel/mm/transparent_hugepage/enabled"
	good := map[string]string{meminfo: "MemAvailable: 8388608 kB\n", group: "0::/a/b\n", enabled: "always [madvise] never\n"}
	with := func(pairs ...string) fs.FS {
		files := map[string]string{}
		for name, text := range good {
			files[name] = text
		}
		for i := 0; i < len(pairs); i += 2 {
			files[pairs[i]] = pairs[i+1]
		}
		return system(files)
	}
	type m = *doctor.Machine
	for _, c := range []struct {
		name   string
		change func(m)
		want   [][3]string
	}{
		{"all well", func(m) {}, nil},
		{"nothing is known", func(m m) { m.Root = system(nil) }, nil},
		{"whole processors", func(m m) {
			m.Threads, m.Root = 2, with("sys/fs/cgroup/a/b/cpu.max", "200000 100000\n", "sys/fs/cgroup/a/cpu.max", "max 100000")
		}, nil},
		{"a part of a processor", func(m m) { m.Root = with("sys/fs/cgroup/a/cpu.max", "150000 100000\n") }, [][3]string{{"processors", "warning", "a limit leaves 1.5: give the container whole"}}},
		{"control groups 1", func(m m) {
			m.Root = with(group, "4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "250000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
		}, [][3]string{{"processors", "warning", "a limit leaves 2.5"}}},
		{"no limit of control groups 1", func(m m) {
			m.Root = with(group, "4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
		}, nil},
		{"too many threads", func(m m) { m.Threads = 8 }, [][3]string{{"processors", "warning", "4, for 8 threads: unset GOMAXPROCS"}}},
		{"too many threads for the limit", func(m m) { m.Root = with("sys/fs/cgroup/cpu.max", "200000 100000") }, [][3]string{{"processors", "warning", "for 4 threads"}}},
		{"an old processor", func(m m) { m.Instructions = []string{"portable"} }, [][3]string{{"instructions", "warning", "AVX2"}}},
		{"no huge pages", func(m m) { m.Root = with(enabled, "always madvise [never]\n") }, [][3]string{{"huge pages", "warning", "echo madvise > /sys"}}},
		{"little memory", func(m m) { m.Root = with(meminfo, "MemAvailable: 524288 kB\n") }, [][3]string{{"memory", "warning", "512.0MiB left by MemAvailable"}}},
		{"hardly any memory", func(m m) { m.Root = with(meminfo, "MemAvailable: 1024 kB\n") }, [][3]string{{"memory", "failed", "1.0MiB left"}}},
		{"a container's memory", func(m m) {
			m.Root = with("sys/fs/cgroup/memory.max", "1048576\n", "sys/fs/cgroup/memory.current", "0\n")
		}, [][3]string{{"memory", "failed", "the container may have 1.0MiB"}}},
		{"a container whose router is busy", func(m m) {
			m.Root = with("sys/fs/cgroup/memory.max", "1073741824\n", "sys/fs/cgroup/memory.current", "1000000000\n")
		}, nil},
		{"a limit of one processor", func(m m) { m.Threads, m.Root = 2, with("sys/fs/cgroup/cpu.max", "100000 100000") }, nil},
		{"few files", func(m m) { m.OpenFiles = 1024 }, [][3]string{{"open files", "warning", "at most 1024, and a router with all its connections needs 4000"}}},
		{"too few files", func(m m) { m.OpenFiles = 100 }, [][3]string{{"open files", "failed", "a mesh needs 200: raise the limit"}}},
		{"a full disk", func(m m) { m.LeastFree = 1 << 40 }, [][3]string{{"disk", "failed", "1.0GiB free"}}},
		{"a full temporary disk", func(m m) { m.DataDir, m.LeastFree = "", 1<<40 }, [][3]string{{"disk", "warning", "1.0GiB free"}}},
		{"a folder to be made", func(m m) { m.DataDir = filepath.Join(m.DataDir, "a") }, nil},
		{"several folders to be made", func(m m) { m.DataDir = filepath.Join(m.DataDir, "a", "b", "c") }, nil},
		{"a relative one", func(m m) { m.DataDir = filepath.Join("no", "folder") }, nil},
		{"none that can be made", func(m m) { m.DataDir = filepath.Join(os.DevNull, "a") }, [][3]string{{"disk", "failed", "not a directory"}}},
		{"a strange disk", func(m m) { m.Free = func(string) (int64, error) { return 0, errors.New("stale") } }, [][3]string{{"disk", "failed", "stale"}}},
	} {
		machine := doctor.Machine{
			Root: with(), Processors: 4, Threads: 4, Instructions: []string{"avx2", "portable"}, OpenFiles: 65536, LeastFiles: 200, RouterFiles: 4000,
			DataDir: t.TempDir(), TempDir: t.TempDir(), LeastFree: 1 << 20, Free: func(string) (int64, error) { return 1 << 30, nil },
		}
		c.change(&machine)
		check(t, c.name, machine.Check(t.Context()), c.want...)
	}
}
