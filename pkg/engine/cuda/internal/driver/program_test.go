package driver_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// launchFill appends out[i] = value.
func launchFill(p *driver.Program, f *driver.Function, out driver.Address, n int, value float32) {
	driver.Launch(p, f, [3]int{(n + 63) / 64, 1, 1}, 64, 0, fillArgs{Out: out, N: int64(n), Value: value})
}

// A program is many times longer than its first memory.
func TestLongProgram(t *testing.T) {
	b := newBench(t)
	const n = 3000
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	memory := b.floats(n)
	out, y := b.pinned(n)
	for i := range n {
		launchFill(p, fill, memory+driver.Address(4*i), 1, float32(i))
	}
	p.CopyOut(out, 0, memory, 4*n)
	if p.Len() != n+1 {
		t.Fatalf("%d operations", p.Len())
	}
	b.run(s, p)
	for i := range y {
		if y[i] != float32(i) {
			t.Fatalf("element %d is %v", i, y[i])
		}
	}
}

func TestGather(t *testing.T) {
	b := newBench(t)
	s, p := b.stream(), b.program()
	in, x := b.pinned(4)
	index, err := b.device.AllocateHost(12)
	must(b, (*driver.Host).Free, index, err)
	copy(x, []float32{10, 11, 12, 13})
	copy(index.Bytes(), []byte{3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0})
	values, places, result := b.floats(4), b.floats(3), b.floats(3)
	out, y := b.pinned(3)
	p.CopyIn(values, in, 0, 16)
	p.CopyIn(places, index, 0, 12)
	driver.Launch(p, b.function("tdm_test_gather"), [3]int{1, 1, 1}, 32, 0, gatherArgs{Out: result, In: values, Index: places, N: 3})
	p.CopyOut(out, 0, result, 12)
	b.run(s, p)
	if y[0] != 13 || y[1] != 11 || y[2] != 12 {
		t.Errorf("gathered %v", y)
	}
}

func TestProgramRefuses(t *testing.T) {
	b := newBench(t)
	s, p := b.stream(), b.program()
	memory, fill := b.floats(16), b.function("tdm_test_fill")
	host, _ := b.pinned(16)
	small := fillArgs{Out: memory, N: 16}
	for name, c := range map[string]struct {
		add  func()
		says []string
	}{
		"a copy in past the end":   {func() { p.CopyIn(memory, host, 8, 57) }, []string{"copy in", "57 bytes from 8 on", "64 bytes"}},
		"a copy out before it":     {func() { p.CopyOut(host, -4, memory, 4) }, []string{"copy out", "from -4 on"}},
		"a copy of less than none": {func() { p.Copy(memory, memory, -1) }, []string{"copy of -1 bytes"}},
		"a fill of less than none": {func() { p.Fill(memory, 0, -1) }, []string{"fill of -1 bytes"}},
		"a sum that overflows":     {func() { p.CopyIn(memory, host, 8, int(^uint(0)>>1)) }, []string{"copy in", "pinned memory of 64 bytes"}},
		"a grid of nothing":        {func() { driver.Launch(p, fill, [3]int{1, 0, 1}, 64, 0, small) }, []string{"tdm_test_fill", "[1 0 1]"}},
		"shared memory below zero": {func() { driver.Launch(p, fill, [3]int{1, 1, 1}, 64, -1, small) }, []string{"-1 bytes of shared"}},
	} {
		t.Run(name, func(t *testing.T) {
			p.Reset()
			p.Fill(memory, 0, 64)
			c.add()
			p.Fill(memory, 0, 64)
			says(t, s.Run(p), append(c.says, "operation 1")...)
			_, err := s.Capture(p)
			says(t, err, "operation 1")
		})
	}
	p.Reset()
	p.Fill(memory, 0, 64)
	b.run(s, p)
}

func TestArgumentsOfTheWrongSize(t *testing.T) {
	b := newEmulated(t) // a real driver says the size from 12.4 on
	s, p := b.stream(), b.program()
	driver.Launch(p, b.function("tdm_test_fill"), [3]int{1, 1, 1}, 64, 0, struct{ A, B uint64 }{})
	says(t, s.Run(p), "tdm_test_fill", "16 bytes of arguments", "24")
}

// What the driver refuses names the operation.
func TestFailedOperation(t *testing.T) {
	b := newBench(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	memory := b.floats(16)
	p.Fill(memory, 0, 64)
	driver.Launch(p, fill, [3]int{1, 1, 1}, 1025, 0, fillArgs{Out: memory, N: 16})
	err := s.Submit(p)
	says(t, err, "submit", "operation 1", "launch of tdm_test_fill", "cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE (1)")
	var failure *driver.Error
	if !errors.As(err, &failure) || failure.Sticky() || failure.OutOfMemory() {
		t.Errorf("%+v", failure)
	}
	if err := s.Synchronize(); err != nil {
		t.Error(err)
	}
}

// A kernel that was compiled for some threads a block takes no more.
func TestThreadsOfABlock(t *testing.T) {
	b := newBench(t)
	const head = "tdm_test_fill_param_0[24]\n)\n"
	bounded := bytes.Replace(ptx, []byte(head), []byte(head+".maxntid 64, 1, 1\n"), 1)
	if len(bounded) == len(ptx) {
		t.Fatal("the kernel has another head")
	}
	m, err := b.device.Load(bounded)
	must(b, (*driver.Module).Unload, m, err)
	fill, err := m.Function("tdm_test_fill")
	if err != nil {
		t.Fatal(err)
	}
	s, p, memory := b.stream(), b.program(), b.floats(16)
	launch := func(threads int) error {
		p.Reset()
		driver.Launch(p, fill, [3]int{1, 1, 1}, threads, 0, fillArgs{Out: memory, N: 16})
		return s.Run(p)
	}
	if err := launch(64); err != nil {
		t.Error(err)
	}
	says(t, launch(65), "launch of tdm_test_fill", "cuLaunchKernel")
}

func TestSharedMemory(t *testing.T) {
	b := newBench(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	memory := b.floats(16)
	most := b.device.Info().SharedPerBlock
	launch := func(shared int) error {
		p.Reset()
		driver.Launch(p, fill, [3]int{1, 1, 1}, 32, shared, fillArgs{Out: memory, N: 16})
		return s.Run(p)
	}
	if err := launch(48 << 10); err != nil {
		t.Error(err)
	}
	says(t, launch(48<<10+1), "tdm_test_fill", "CUDA_ERROR_INVALID_VALUE")
	says(t, fill.AllowShared(most+1), "tdm_test_fill", "shared memory")
	if err := fill.AllowShared(most); err != nil {
		t.Fatal(err)
	}
	if err := launch(most); err != nil {
		t.Error(err)
	}
	for _, shared := range []int{0, most} {
		blocks, err := fill.BlocksPerMultiprocessor(64, shared)
		if err != nil || blocks < 1 || (shared == most) != (blocks == 1) {
			t.Errorf("%d blocks with %d bytes of shared memory: %v", blocks, shared, err)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	b := newBench(t)
	const n = 64
	s, p, fill, add := b.stream(), b.program(), b.function("tdm_test_fill"), b.function("tdm_test_add")
	x, y, e := b.floats(n), b.floats(n), b.event()
	host, _ := b.pinned(n)
	p.Fill(x, 0, 4*n)
	g, err := s.Capture(p)
	must(b, (*driver.Graph).Close, g, err)
	step := func() {
		p.Reset()
		p.CopyIn(x, host, 0, 4*n)
		launchFill(p, fill, y, n, 1)
		driver.Launch(p, add, [3]int{1, 1, 1}, n, 0, addArgs{Out: x, A: x, B: y, N: n})
		p.Graph(g)
		p.Copy(y, x, 4*n)
		p.Fill(x, 1, 4*n)
		p.CopyOut(host, 0, y, 4*n)
		p.Record(e)
		err = errors.Join(s.Submit(p), s.Run(p), s.Synchronize(), e.Synchronize())
	}
	if allocations := testing.AllocsPerRun(50, step); allocations != 0 || err != nil {
		t.Errorf("%v allocations a step, error %v", allocations, err)
	}
}

// Run waits for the device, Submit does not.
func TestWaited(t *testing.T) {
	b := newBench(t)
	s, p := b.stream(), b.program()
	launchFill(p, b.function("tdm_test_fill"), b.floats(64), 64, 1)
	if err := s.Submit(p); err != nil || s.Waited() != 0 {
		t.Errorf("waited %v after Submit: %v", s.Waited(), err)
	}
	b.run(s, p)
	once := s.Waited()
	b.run(s, p)
	if once <= 0 || s.Waited() <= once {
		t.Errorf("waited %v, then %v in all", once, s.Waited())
	}
}
