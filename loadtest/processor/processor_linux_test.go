package processor_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/processor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process started on a core is bound to it, and its parent is unaffected.
func TestOn(t *testing.T) {
	all := processor.Cores()
	if len(all) == 0 || !slices.IsSorted(all) {
		t.Fatalf("cores %v", all)
	}
	last := all[len(all)-1]
	child := exec.Command("grep", "Cpus_allowed_list", "/proc/self/status")
	var said strings.Builder
	child.Stdout = &said
	if err := processor.On([]int{last}, child.Start); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, list, _ := strings.Cut(said.String(), ":"); strings.TrimSpace(list) != strconv.Itoa(last) {
		t.Errorf("a process on core %d says %q", last, said.String())
	}
	for range 100 { // on whatever thread this goroutine is
		if now := processor.Cores(); !slices.Equal(now, all) {
			t.Fatalf("afterwards there are the cores %v, before %v", now, all)
		}
		seen := make(chan []int)
		go func() { seen <- processor.Cores() }()
		if now := <-seen; !slices.Equal(now, all) {
			t.Fatalf("another goroutine has the cores %v, before %v", now, all)
		}
	}
}

func TestOnFails(t *testing.T) {
	wrong := errors.New("wrong")
	for _, cores := range [][]int{nil, processor.Cores()} {
		if err := processor.On(cores, func() error { return wrong }); !errors.Is(err, wrong) {
			t.Errorf("on %v: %v", cores, err)
		}
	}
	for _, cores := range [][]int{{}, {1023}} {
		called := false
		err := processor.On(cores, func() error { called = true; return nil })
		if called || err == nil || !strings.Contains(err.Error(), "run on cores") {
			t.Errorf("on %v: called %v, %v", cores, called, err)
		}
	}
}

func TestCPUSeconds(t *testing.T) {
	before, err := processor.CPUSeconds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for i := range 10_000_000 {
		sum ^= i * i
	}
	after, err := processor.CPUSeconds(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("from %v to %v s, %v (%d)", before, after, err, sum)
	}
	if _, err := processor.CPUSeconds(1 << 22); err == nil { // above the kernel's largest
		t.Error("a process that cannot be has a CPU time")
	}
}

func TestBusy(t *testing.T) {
	const stat = `cpu  330 3 300 3000 30 3 33 6 0 0
cpu0 100 1 100 1000 10 1 11 2 50 0
cpu1 110 1 100 1000 10 1 11 2 0 0
cpu2 120 1 100 1000 10 1 11 2 0 0
intr 12 0 0
`
	for _, c := range []struct {
		name  string
		stat  string
		cores []int
		want  float64
		ok    bool
	}{
		{"all", stat, []int{0, 1, 2}, 2.15 + 2.25 + 2.35, true},
		{"some", stat, []int{0, 2}, 2.15 + 2.35, true},
		{"one that is not there", stat, []int{0, 3}, 0, false},
		{"none", stat, nil, 0, false},
		{"nothing", "", []int{0}, 0, false},
		{"no number", "cpu0 1 2 3 4 5 6 x 8\n", []int{0}, 0, false},
		{"a short line", "cpu0 1 2 3\n", []int{0}, 0, false},
	} {
		if got, ok := processor.ParseBusy(c.stat, c.cores); ok != c.ok || ok && math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, %t, want %v, %t", c.name, got, ok, c.want, c.ok)
		}
	}
	before, ok := processor.Busy(processor.Cores())
	after, still := processor.Busy(processor.Cores())
	if !ok || !still || before <= 0 || after < before {
		t.Errorf("this machine: %v, %t, then %v, %t", before, ok, after, still)
	}
}

func TestThreadClock(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, name := processor.ThreadClock()
	wall, began := time.Now(), now()
	used := now() - began
	if most := time.Since(wall); name != "processor" || used < 0 || used > most {
		t.Errorf("the clock %q says %v within %v", name, used, most)
	}
}

func FuzzBusy(f *testing.F) {
	f.Add("cpu0 100 1 100 1000 10 1 11 2 50 0\n", 0)
	f.Add("cpu 1 2 3 4 5 6 7 8\ncpu-1 1 2 3 4 5 6 7 8\n", -1)
	f.Fuzz(func(t *testing.T, stat string, core int) {
		if seconds, _ := processor.ParseBusy(stat, []int{core}); !(seconds >= 0) {
			t.Errorf("%v seconds", seconds)
		}
	})
}
