package clustertest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Freeze stops every thread of the program; its connections stay.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
}

// Thaw undoes Freeze.
func (p *Process) Thaw(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

// Held is what the operating system says that the program holds: open files, and
// bytes of memory. ok is false where it does not say.
func (p *Process) Held() (files int, memoryBytes int64, ok bool) {
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	entries, err := os.ReadDir(proc + "fd")
	if err != nil {
		return 0, 0, false
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(status)) {
		if value, is := strings.CutPrefix(line, "VmRSS:"); is {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return len(entries), kib << 10, err == nil
		}
	}
	return 0, 0, false
}
