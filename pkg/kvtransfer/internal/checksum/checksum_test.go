package checksum_test

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// guard is the margin around a destination, checked for stray writes.
const guard = 128

// all returns the processor's paths and the package's own functions.
func all() []checksum.Path {
	own := checksum.Path{Name: "package", Update: checksum.Update, Copy: checksum.Copy, Stream: checksum.Stream}
	return append(checksum.Paths(), own)
}

// copies returns a path's copying functions.
func copies(path checksum.Path) map[string]func(dst, src []byte, sum uint32) uint32 {
	return map[string]func(dst, src []byte, sum uint32) uint32{"Copy": path.Copy, "Stream": path.Stream}
}

// check compares a path with the standard library, for offsets of source and destination
// within a cache line.
func check(t *testing.T, path checksum.Path, text []byte, sum uint32, from, to int) {
	t.Helper()
	source := make([]byte, from+len(text))
	copy(source[from:], text)
	source = source[from:]
	want := crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), text)
	if got := path.Update(sum, source); got != want {
		t.Errorf("Update of %d bytes at %d: %#x, want %#x", len(text), from, got, want)
	}
	for name, way := range copies(path) {
		memory := bytes.Repeat([]byte{0xa5}, guard+to+len(text)+guard)
		at := guard + to
		if got := way(memory[at:], source, sum); got != want {
			t.Errorf("%s of %d bytes from %d to %d: %#x, want %#x", name, len(text), from, to, got, want)
		}
		if !bytes.Equal(memory[at:at+len(text)], text) {
			t.Errorf("%s of %d bytes from %d to %d copied something else", name, len(text), from, to)
		}
		around := append(bytes.Clone(memory[:at]), memory[at+len(text):]...)
		if !bytes.Equal(around, bytes.Repeat([]byte{0xa5}, len(around))) {
			t.Errorf("%s of %d bytes from %d to %d wrote beside its place", name, len(text), from, to)
		}
	}
}

func TestAgainstStandardLibrary(t *testing.T) {
	for _, path := range all() {
		t.Run(path.Name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			fill := func(n int) []byte {
				text := make([]byte, n)
				for i := range text {
					text[i] = byte(random.Uint32())
				}
				return text
			}
			for n := range 1200 {
				check(t, path, fill(n), random.Uint32(), n%3, n%64)
			}
			for range 1000 {
				check(t, path, fill(random.IntN(20_000)), random.Uint32(), random.IntN(64), random.IntN(64))
			}
			for _, n := range []int{16 << 10, 32 << 10, 1<<20 - 4<<10} {
				check(t, path, fill(n), 0, 0, 0)
				check(t, path, bytes.Repeat([]byte{0xff}, n), 0, 1, 0)
				check(t, path, make([]byte, n), 0, 0, 1)
			}
		})
	}
}

// Summing a text in parts gives the sum of the whole.
func TestParts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	text := make([]byte, 100_000)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	want := crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
	for _, path := range all() {
		for name, way := range copies(path) {
			dst := make([]byte, len(text))
			var sum uint32
			for at := 0; at < len(text); {
				n := min(random.IntN(3_000), len(text)-at)
				sum = way(dst[at:], text[at:at+n], sum)
				at += n
			}
			if sum != want || !bytes.Equal(dst, text) {
				t.Errorf("%s of %s: %#x, want %#x", name, path.Name, sum, want)
			}
		}
	}
}

func FuzzAgainstStandardLibrary(f *testing.F) {
	f.Add([]byte("123456789"), uint32(0), uint8(0), uint8(0))
	f.Add(bytes.Repeat([]byte{1, 2, 3}, 400), uint32(7), uint8(1), uint8(63))
	f.Fuzz(func(t *testing.T, text []byte, sum uint32, from, to uint8) {
		for _, path := range all() {
			check(t, path, text, sum, int(from%64), int(to%64))
		}
	})
}
