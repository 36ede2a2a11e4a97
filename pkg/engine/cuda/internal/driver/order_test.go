package driver_test

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

const seeds = 64

// Two streams: one writes, the other reads. What is read is told for every seed.
func readByAnother(t *testing.T, wait bool) (results []float32) {
	b := newEmulated(t)
	writer, reader, w, r := b.stream(), b.stream(), b.program(), b.program()
	fill, e := b.function("tdm_test_fill"), b.event()
	x, y := b.floats(1), b.floats(1)
	out, got := b.pinned(1)
	for seed := range uint64(seeds) {
		b.control.Set(emulationtest.Seed, seed)
		w.Reset()
		w.Fill(x, 0, 4)
		b.run(writer, w)
		w.Reset()
		launchFill(w, fill, x, 1, 1)
		w.Record(e)
		r.Reset()
		r.Copy(y, x, 4)
		r.CopyOut(out, 0, y, 4)
		if err := writer.Submit(w); err != nil {
			t.Fatal(err)
		}
		if wait {
			if err := e.Synchronize(); err != nil {
				t.Fatal(err)
			}
		}
		b.run(reader, r)
		results = append(results, got[0])
		if err := writer.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	return results
}

func TestEventOrdersStreams(t *testing.T) {
	for seed, got := range readByAnother(t, true) {
		if got != 1 {
			t.Errorf("seed %d: %v", seed, got)
		}
	}
}

func TestMissingWaitShows(t *testing.T) {
	early := 0
	for _, got := range readByAnother(t, false) {
		if got == 0 {
			early++
		}
	}
	if early == 0 || early == seeds {
		t.Errorf("of %d seeds %d read too early", seeds, early)
	}
}

func TestNothingRunsUntilSomebodyWaits(t *testing.T) {
	b := newEmulated(t)
	s, p := b.stream(), b.program()
	x := b.floats(1)
	in, value := b.pinned(1)
	out, got := b.pinned(1)
	value[0], got[0] = 1, -1
	p.CopyIn(x, in, 0, 4)
	p.CopyOut(out, 0, x, 4)
	if err := s.Submit(p); err != nil {
		t.Fatal(err)
	}
	if live := b.control.Live(); live.Pending != 2 || got[0] != -1 {
		t.Fatalf("%d operations wait, and %v was read", live.Pending, got[0])
	}
	value[0] = 2 // too early for the copy to have read
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if got[0] != 2 {
		t.Errorf("read %v", got[0])
	}
}

func TestEvents(t *testing.T) {
	b := newBench(t)
	first, second, p := b.stream(), b.stream(), b.program()
	x, e := b.floats(1), b.event()
	if err := e.Synchronize(); err != nil {
		t.Errorf("an event that was never recorded: %v", err)
	}

	// Two streams in turn, the event being recorded anew each time.
	for i := range 20 {
		s := []*driver.Stream{first, second}[i%2]
		p.Reset()
		p.Fill(x, byte(i), 4)
		p.Record(e)
		if err := errors.Join(s.Submit(p), e.Synchronize()); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.device.AllocateHost(4)
	must(b, (*driver.Host).Free, out, err)
	p.Reset()
	p.CopyOut(out, 0, x, 4)
	b.run(first, p)
	if out.Bytes()[3] != 19 {
		t.Errorf("the last fill was %d", out.Bytes()[3])
	}
}

func TestTimers(t *testing.T) {
	b := newBench(t)
	s, p := b.stream(), b.program()
	start, err := b.device.NewTimer()
	must(b, (*driver.Event).Close, start, err)
	end, err := b.device.NewTimer()
	must(b, (*driver.Event).Close, end, err)
	x := b.floats(1)
	p.Record(start)
	p.Fill(x, 1, 4)
	p.Record(end)
	b.run(s, p)
	forward, err := end.Elapsed(start)
	if err != nil || forward < 0 {
		t.Errorf("%v, %v", forward, err)
	}
	back, err := start.Elapsed(end)
	if err != nil || back > 0 {
		t.Errorf("%v, %v", back, err)
	}
	_, err = end.Elapsed(b.event())
	says(t, err, "NewTimer")
}
