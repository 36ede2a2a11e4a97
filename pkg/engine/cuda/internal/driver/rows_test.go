package driver_test

import (
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// Rows go in, from one place on the device to another, and out, and nothing beside them is
// touched, whatever their pitch.
func TestRows(t *testing.T) {
	for _, pitch := range []int{20, 512} {
		t.Run(strconv.Itoa(pitch), func(t *testing.T) { checkRows(t, pitch) })
	}
}

func checkRows(t *testing.T, pitch int) {
	b := newBench(t)
	const width, rows = 12, 5
	total := rows * pitch
	s, p := b.stream(), b.program()
	first, second := b.floats(total/4), b.floats(total/4)
	in, err := b.device.AllocateHost(4 + rows*width)
	must(b, (*driver.Host).Free, in, err)
	out, err := b.device.AllocateHost(8 + rows*width)
	must(b, (*driver.Host).Free, out, err)
	all, err := b.device.AllocateHost(total)
	must(b, (*driver.Host).Free, all, err)
	for i := range in.Bytes() {
		in.Bytes()[i] = byte(i)
	}
	clear(out.Bytes())
	r := driver.Rows{Count: rows, Bytes: width, Pitch: pitch}
	p.Fill(first, 0xee, int64(total))
	p.Fill(second, 0xdd, int64(total))
	p.CopyRowsIn(first, in, 4, r)
	p.CopyRows(second, first, r)
	p.CopyRowsOut(out, 8, second, r)
	p.CopyOut(all, 0, second, total)
	b.run(s, p)
	for i := range rows * width {
		if got := out.Bytes()[8+i]; got != byte(4+i) {
			t.Fatalf("byte %d came out as %d", i, got)
		}
	}
	for i, got := range all.Bytes() {
		if row, at := i/pitch, i%pitch; at >= width && got != 0xdd || at < width && got != byte(4+row*width+at) {
			t.Fatalf("byte %d of row %d is %#x", at, row, got)
		}
	}
	if out.Bytes()[7] != 0 {
		t.Error("bytes before the rows were written")
	}
}

// What does not fit is refused and named, and no rows are nothing.
func TestRowsRefuses(t *testing.T) {
	b := newBench(t)
	s, p := b.stream(), b.program()
	memory := b.floats(16)
	host, _ := b.pinned(16)
	for name, c := range map[string]struct {
		add  func()
		says []string
	}{
		"in past the end":    {func() { p.CopyRowsIn(memory, host, 8, driver.Rows{Count: 2, Bytes: 30, Pitch: 32}) }, []string{"copy in of rows", "60 bytes from 8 on"}},
		"out before it":      {func() { p.CopyRowsOut(host, -4, memory, driver.Rows{Count: 1, Bytes: 4, Pitch: 4}) }, []string{"copy out of rows", "from -4 on"}},
		"rows that overlap":  {func() { p.CopyRows(memory, memory+32, driver.Rows{Count: 2, Bytes: 8, Pitch: 7}) }, []string{"copy of rows", "7 apart"}},
		"less than none":     {func() { p.CopyRows(memory, memory+32, driver.Rows{Count: -1, Bytes: 8, Pitch: 8}) }, []string{"copy of rows", "-1 of"}},
		"a pitch of devices": {func() { p.CopyRows(memory, memory+32, driver.Rows{Count: 1, Bytes: 8, Pitch: driver.MostPitch + 1}) }, []string{"copy of rows"}},
		"past the memory":    {func() { p.CopyRows(memory, memory+32, driver.Rows{Count: 40, Bytes: 8, Pitch: 16}) }, []string{"copy of 40 rows of 8 bytes", "cuMemcpy"}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "past the memory" && b.control == nil {
				t.Skip("a device may have more memory behind it")
			}
			p.Reset()
			p.Fill(memory, 0, 64)
			c.add()
			says(t, s.Run(p), append(c.says, "operation 1")...)
		})
	}
	p.Reset()
	p.CopyRows(memory, memory+32, driver.Rows{Count: 0, Bytes: 8, Pitch: 8})
	p.CopyRows(memory, memory+32, driver.Rows{Count: 3, Bytes: 0, Pitch: 8})
	if p.Len() != 0 {
		t.Errorf("%d operations for no bytes", p.Len())
	}
}

// Each priority is one of its own, from the device's least to its greatest.
func TestPriorities(t *testing.T) {
	b := newEmulated(t)
	for _, priority := range []driver.Priority{driver.Low, driver.Middle, driver.Middle, driver.High} {
		s, err := b.device.NewStream(priority)
		must(b, (*driver.Stream).Close, s, err)
	}
	if got := b.control.Streams(); got != [6]int{0: 1, 2: 2, 5: 1} {
		t.Errorf("streams by priority: %v", got)
	}
}
