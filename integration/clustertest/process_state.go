package clustertest

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/pkg/memory"
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
	pid := p.cmd.Process.Pid
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, 0, false
	}
	memoryBytes, ok = memory.Resident(os.DirFS("/"), pid)
	return len(entries), memoryBytes, ok
}

func (p *Process) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("%v to %s: %v", signal, p.Name, err)
	}
}
