package driver_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

// What several streams do at once, waited for only where that must be, gives what one would, in
// whatever order they run. Events are few and recorded again and again.
func TestRandomProgramsOnSeveralStreams(t *testing.T) {
	b := newEmulated(t)
	const cells, streams, operations = 6, 3, 60
	fill, add := b.function("tdm_test_fill"), b.function("tdm_test_add")
	memory := b.floats(cells)
	out, got := b.pinned(cells)
	p := b.program()
	var queues [streams]*driver.Stream
	var events [streams]*driver.Event
	for i := range queues {
		queues[i], events[i] = b.stream(), b.event()
	}
	at := func(cell int) driver.Address { return memory + driver.Address(4*cell) }

	for seed := range uint64(100) {
		b.control.Set(emulationtest.Seed, seed)
		random := rand.New(rand.NewPCG(seed, 0))
		var want [cells]float32
		var users [cells][streams]bool // which streams used a cell since they were waited for
		p.Reset()
		p.Fill(memory, 0, 4*cells)
		b.run(queues[0], p)
		for range operations {
			stream, to, x, y := random.IntN(streams), random.IntN(cells), random.IntN(cells), random.IntN(cells)
			p.Reset()
			for other := range streams {
				if other != stream && (users[to][other] || users[x][other] || users[y][other]) {
					if err := events[other].Synchronize(); err != nil {
						t.Fatal(err)
					}
					for cell := range users {
						users[cell][other] = false
					}
				}
			}
			if random.IntN(3) == 0 {
				value := float32(random.IntN(100))
				want[to] = value
				launchFill(p, fill, at(to), 1, value)
			} else {
				want[to] = want[x] + want[y]
				driver.Launch(p, add, [3]int{1, 1, 1}, 1, 0, addArgs{Out: at(to), A: at(x), B: at(y), N: 1})
			}
			p.Record(events[stream])
			if err := queues[stream].Submit(p); err != nil {
				t.Fatal(err)
			}
			for _, cell := range []int{to, x, y} {
				users[cell][stream] = true
			}
		}
		p.Reset()
		for _, e := range events {
			if err := e.Synchronize(); err != nil {
				t.Fatal(err)
			}
		}
		p.CopyOut(out, 0, memory, 4*cells)
		b.run(queues[0], p)
		if [cells]float32(got) != want {
			t.Fatalf("seed %d: %v, not %v", seed, got, want)
		}
	}
}
