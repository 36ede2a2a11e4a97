package checksum_test

import (
	"hash/crc32"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

const (
	pieceBytes = 16 << 10
	largeBytes = 64 << 20
)

// BenchmarkPaths measures each path against a plain copy and the standard library's sum, in
// pieces of 16 KiB, with cold source (as at a sender), cold destination (as at a receiver),
// both, or neither.
func BenchmarkPaths(b *testing.B) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	hot, hotToo := make([]byte, pieceBytes), make([]byte, pieceBytes)
	cold, coldToo := make([]byte, largeBytes), make([]byte, largeBytes)
	for at := 0; at < largeBytes; at += 4096 {
		cold[at], coldToo[at] = 1, 1
	}
	type way struct {
		name string
		run  func(dst, src []byte, sum uint32) uint32
	}
	update := func(by func(uint32, []byte) uint32) func([]byte, []byte, uint32) uint32 {
		return func(_, src []byte, sum uint32) uint32 { return by(sum, src) }
	}
	sums := []way{{"crc32.Update", update(func(sum uint32, p []byte) uint32 {
		return crc32.Update(sum, castagnoli, p)
	})}}
	copies := []way{{"copy", func(dst, src []byte, _ uint32) uint32 { copy(dst, src); return 0 }}}
	for _, path := range checksum.Paths() {
		sums = append(sums, way{path.Name + ".Update", update(path.Update)})
		copies = append(copies, way{path.Name + ".Copy", path.Copy}, way{path.Name + ".Stream", path.Stream})
	}
	for _, at := range []struct {
		name     string
		dst, src []byte
		ways     []way
	}{
		{"hot", nil, hot, sums},
		{"cold", nil, cold, sums},
		{"hot-hot", hot, hotToo, copies},
		{"hot-cold", cold, hot, copies},
		{"cold-hot", hot, cold, copies},
		{"cold-cold", coldToo, cold, copies},
	} {
		for _, way := range at.ways {
			b.Run(at.name+"/"+way.name, func(b *testing.B) {
				b.SetBytes(pieceBytes)
				var sum uint32
				for i := 0; b.Loop(); i++ {
					sum = way.run(piece(at.dst, i), piece(at.src, i), sum)
				}
			})
		}
	}
}

// piece is the i-th piece of p, cyclically.
func piece(p []byte, i int) []byte {
	if p == nil {
		return nil
	}
	at := i * pieceBytes % len(p)
	return p[at : at+pieceBytes]
}
