package driver_test

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

func TestGraph(t *testing.T) {
	b := newBench(t)
	const n = 100
	s, p, fill, add := b.stream(), b.program(), b.function("tdm_test_fill"), b.function("tdm_test_add")
	x, one := b.floats(n), b.floats(n)
	out, y := b.pinned(n)
	p.Fill(x, 0, 4*n)
	b.run(s, p)
	p.Reset()
	launchFill(p, fill, one, n, 1)
	driver.Launch(p, add, [3]int{2, 1, 1}, 64, 0, addArgs{Out: x, A: x, B: one, N: n})
	g, err := s.Capture(p)
	must(b, (*driver.Graph).Close, g, err)

	// The program is used again; the graph has its own copy.
	p.Reset()
	for range 3 {
		p.Graph(g)
	}
	p.CopyOut(out, 0, x, 4*n)
	b.run(s, p)
	b.run(s, p)
	for i := range y {
		if y[i] != 6 {
			t.Fatalf("element %d is %v after six launches: the capture itself runs nothing", i, y[i])
		}
	}
}

// A graph's records act at each launch.
func TestGraphWithEvents(t *testing.T) {
	b := newBench(t)
	writer, reader, p := b.stream(), b.stream(), b.program()
	written := b.event()
	x := b.floats(1)
	in, value := b.pinned(1)
	out, got := b.pinned(1)
	p.CopyIn(x, in, 0, 4)
	p.Record(written)
	write, err := writer.Capture(p)
	must(b, (*driver.Graph).Close, write, err)
	p.Reset()
	p.CopyOut(out, 0, x, 4)
	readBack, err := reader.Capture(p)
	must(b, (*driver.Graph).Close, readBack, err)
	for i := range seeds {
		if b.control != nil {
			b.control.Set(emulationtest.Seed, uint64(i))
		}
		value[0] = float32(i)
		p.Reset()
		p.Graph(write)
		if err := errors.Join(writer.Submit(p), written.Synchronize()); err != nil {
			t.Fatal(err)
		}
		p.Reset()
		p.Graph(readBack)
		b.run(reader, p)
		if got[0] != float32(i) {
			t.Fatalf("launch %d read %v", i, got[0])
		}
	}
}

func TestCaptureRefuses(t *testing.T) {
	b := newBench(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	x := b.floats(1)
	p.Fill(x, 0, 4)
	g, err := s.Capture(p)
	must(b, (*driver.Graph).Close, g, err)
	p.Graph(g)
	_, err = s.Capture(p)
	says(t, err, "operation 1", "cannot hold another")

	p.Reset()
	p.Fill(x, 0, 4)
	driver.Launch(p, fill, [3]int{1, 1, 1}, 1025, 0, fillArgs{Out: x, N: 1})
	_, err = s.Capture(p)
	says(t, err, "capture", "operation 1", "launch of tdm_test_fill")

	p.Reset()
	p.Fill(x, 0, 4)
	b.run(s, p) // the stream is not capturing any more
}

func TestCaptureThatFailsLeavesNothing(t *testing.T) {
	b := newEmulated(t)
	s, p := b.stream(), b.program()
	x := b.floats(1)
	p.Fill(x, 0, 4)
	for _, call := range []string{"cuStreamBeginCapture_v2", "cuMemsetD8Async", "cuGraphInstantiateWithFlags"} {
		b.control.Fail(call, 0, 999)
		_, err := s.Capture(p)
		says(t, err, call, "CUDA_ERROR_UNKNOWN")
		b.run(s, p)
	}
}
