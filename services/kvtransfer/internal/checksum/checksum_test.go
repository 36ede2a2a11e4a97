package checksum_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/services/kvtransfer/internal/checksum"
)

// guard surrounds what is copied to, to see that nothing else is written.
const guard = 128

// ways are the functions that copy.
var ways = map[string]func(dst, src []byte, sum uint32) uint32{
	"Copy":   checksum.Copy,
	"Stream": checksum.Stream,
}

// check compares everything with the standard library on a text, for a place of its
// source and its destination within a cache line.
func check(t *testing.T, text []byte, sum uint32, from, to int) {
	t.Helper()
	source := make([]byte, from+len(text))
	copy(source[from:], text)
	source = source[from:]
	want := crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), text)
	if got := checksum.Update(sum, source); got != want {
		t.Errorf("Update of %d bytes at %d: %#x, want %#x", len(text), from, got, want)
	}
	for name, way := range ways {
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
	random := rand.New(rand.NewPCG(1, 2))
	fill := func(n int) []byte {
		text := make([]byte, n)
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		return text
	}
	for n := range 1200 {
		check(t, fill(n), 0, n%3, n%64)
	}
	for range 2000 {
		check(t, fill(random.IntN(20_000)), random.Uint32(), random.IntN(64), random.IntN(64))
	}
	for _, n := range []int{16 << 10, 32 << 10, 1<<20 - 4<<10} {
		check(t, fill(n), 0, 0, 0)
		check(t, bytes.Repeat([]byte{0xff}, n), 1, 1, 0)
		check(t, make([]byte, n), 0, 0, 1)
	}
}

// The parts of a text, summed one after another, are the whole.
func TestParts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	text := make([]byte, 100_000)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	want := crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
	for name, way := range ways {
		dst := make([]byte, len(text))
		var sum uint32
		for at := 0; at < len(text); {
			n := min(random.IntN(3_000), len(text)-at)
			sum = way(dst[at:], text[at:at+n], sum)
			at += n
		}
		if sum != want || !bytes.Equal(dst, text) {
			t.Errorf("%s: %#x, want %#x", name, sum, want)
		}
	}
}

func FuzzAgainstStandardLibrary(f *testing.F) {
	f.Add([]byte("123456789"), uint32(0), uint8(0), uint8(0))
	f.Add(bytes.Repeat([]byte{1, 2, 3}, 400), uint32(7), uint8(1), uint8(63))
	f.Fuzz(func(t *testing.T, text []byte, sum uint32, from, to uint8) {
		check(t, text, sum, int(from%64), int(to%64))
	})
}

// BenchmarkCopy copies from memory that is in a near cache to memory that is in
// none, as a receiver does, and the other way round, as a sender does.
func BenchmarkCopy(b *testing.B) {
	const piece, large = 16 << 10, 1 << 28
	hot, cold := make([]byte, piece), make([]byte, large)
	for i := range large / 4096 {
		cold[i*4096] = 1
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	all := map[string]func(dst, src []byte, sum uint32) uint32{
		"Standard": func(dst, src []byte, sum uint32) uint32 {
			copy(dst, src)
			return crc32.Update(sum, table, dst[:len(src)])
		},
		"Plain": func(dst, src []byte, _ uint32) uint32 { copy(dst, src); return 0 },
	}
	for name, way := range ways {
		all[name] = way
	}
	for _, name := range []string{"Plain", "Standard", "Copy", "Stream"} {
		for _, receive := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/receive=%t", name, receive), func(b *testing.B) {
				b.SetBytes(piece)
				var sum uint32
				at := 0
				for b.Loop() {
					if receive {
						sum = all[name](cold[at:], hot, sum)
					} else {
						sum = all[name](hot, cold[at:at+piece], sum)
					}
					at = (at + piece) % large
				}
			})
		}
	}
}
