package memory_test

import (
	"bytes"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/memory"
)

// files is a file system of name, content, name, content…
func files(pairs ...string) fstest.MapFS {
	system := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		system[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return system
}

func TestLimit(t *testing.T) {
	for _, test := range []struct {
		name   string
		system fstest.MapFS
		want   int64 // 0: none
	}{
		{"not Linux", files(), 0},
		{"no limit", files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "max\n"), 0},
		{"container", files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "2147483648\n"), 2 << 30},
		{"the host's path", files("proc/self/cgroup", "0::/kubepods/pod1/c1\n", "sys/fs/cgroup/memory.max", "1073741824\n"), 1 << 30},
		{"the lowest above", files("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "max\n", "sys/fs/cgroup/a/memory.max", "1048576\n"), 1 << 20},
		{"version 1", files("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), 512 << 20},
		{"version 1 without", files("proc/self/cgroup", "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), 0},
		{"nonsense", files("proc/self/cgroup", "what\n0::\n::\n", "sys/fs/cgroup/memory.max", "-5\n"), 0},
	} {
		got, is := memory.Limit(test.system)
		if is != (test.want != 0) || is && got != test.want {
			t.Errorf("%s: %d %v, want %d", test.name, got, is, test.want)
		}
	}
}

func TestHeapIsWhatIsLeft(t *testing.T) {
	for _, test := range []struct{ limit, outside, want int64 }{
		{1000 << 20, 0, 900 << 20},
		{8000 << 20, 7000 << 20, 900 << 20},
		{1000 << 20, 990 << 20, 64 << 20},
		{1000 << 20, 4000 << 20, 64 << 20},
	} {
		if got := memory.Heap(test.limit, test.outside); got != test.want {
			t.Errorf("%d bytes with %d outside: %d, want %d", test.limit, test.outside, got, test.want)
		}
	}
}

func TestKeepHeap(t *testing.T) {
	container := files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "4294967296\n")
	for _, test := range []struct {
		name        string
		set         int64 // before, as by GOMEMLIMIT
		outside     int64
		system      fstest.MapFS
		want        int64
		said, level string
	}{
		{"in a container", math.MaxInt64, 3 << 30, container, memory.Heap(4<<30, 3<<30), "heap is limited", "INFO"},
		{"too little", math.MaxInt64, 4 << 30, container, 64 << 20, "engine_bytes=4294967296", "WARN"},
		{"the user's", 123 << 20, 0, container, 123 << 20, "", ""},
		{"no container", math.MaxInt64, 0, files(), math.MaxInt64, "", ""},
	} {
		before := debug.SetMemoryLimit(test.set)
		var log bytes.Buffer
		memory.KeepHeap(test.system, test.outside, slog.New(slog.NewTextHandler(&log, nil)))
		got := debug.SetMemoryLimit(before)
		if got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if !strings.Contains(log.String(), test.said) || !strings.Contains(log.String(), test.level) || test.said == "" && log.Len() > 0 {
			t.Errorf("%s: it said %q", test.name, log.String())
		}
	}
}

func TestPercent(t *testing.T) {
	for _, test := range []struct {
		live, roots uint64
		want        int
	}{
		{0, 0, 25500},
		{64 << 20, 0, 300},
		{64 << 20, 64 << 20, 150},
		{128 << 20, 0, 100},
		{192 << 20, 0, 33},
		{192 << 20, 192 << 20, 16},
		{1 << 30, 1 << 40, 1},
		{1 << 30, 0, 33},
	} {
		if got := memory.Percent(test.live, test.roots); got != test.want {
			t.Errorf("with %d bytes that live and %d of roots: %d%%, want %d%%", test.live, test.roots, got, test.want)
		}
	}
}

// The percentage follows what lives, collection after collection, until it is stopped.
func TestCollectSeldom(t *testing.T) {
	percent := func() int {
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	before := percent()
	memory.CollectSeldom(func(string) string { return "50" })()
	if got := percent(); got != before {
		t.Errorf("with GOGC set: %d, want %d", got, before)
	}
	synctest.Test(t, func(t *testing.T) {
		stop := memory.CollectSeldom(func(string) string { return "" })
		var held []byte
		for range 3 {
			held = make([]byte, len(held)+128<<20)
			runtime.GC()
			time.Sleep(time.Second)
			// Other tests left little.
			if got, most := percent(), memory.Percent(uint64(len(held)), 0); got > most || got < most*9/10 && got > 33 {
				t.Errorf("with %d bytes that live: %d%%, want %d%%", len(held), got, most)
			}
		}
		runtime.KeepAlive(held)
		stop()
	})
	if got := percent(); got != before {
		t.Errorf("stopped: %d, want %d", got, before)
	}
}

func FuzzLimit(f *testing.F) {
	f.Add("0::/a/b\n", "max\n")
	f.Add("4:memory:/../x\n0::/", "9223372036854775807")
	f.Fuzz(func(t *testing.T, groups, limit string) {
		got, is := memory.Limit(files("proc/self/cgroup", groups, "sys/fs/cgroup/memory.max", limit, "sys/fs/cgroup/memory/memory.limit_in_bytes", limit))
		if is && got <= 0 {
			t.Errorf("a limit of %d", got)
		}
	})
}
