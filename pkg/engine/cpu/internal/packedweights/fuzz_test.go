package packedweights_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/packedweights"
)

// FuzzRead reads any file: it is refused, or it is to the byte what writing the weights
// that were read makes.
func FuzzRead(f *testing.F) {
	small := []int{3, 100, 0, 9}
	folder := packedweights.Folder{Path: f.TempDir(), Threads: 2}
	whole, err := os.ReadFile(write(f, folder, random(1, small)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, false)
	f.Add(whole[:4096], false)
	f.Add(whole[:24], true)
	for _, field := range []int{8, 12, 16, 24, 120, 4000} {
		changed := bytes.Clone(whole)
		binary.LittleEndian.PutUint32(changed[field:], 1<<31-1)
		f.Add(changed, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed && len(data) >= 4096 { // so that what is behind the checksum is reached
			binary.LittleEndian.PutUint32(data[4092:], crc32.Checksum(data[:4092], crc32.MakeTable(crc32.Castagnoli)))
		}
		read := packedweights.Folder{Path: t.TempDir(), Threads: 2}
		path := filepath.Join(read.Path, identity.FileName())
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		parts := zeros(small)
		if err := read.Read(t.Context(), identity, parts, silent); err != nil {
			if !equal(parts, zeros(small)) {
				t.Errorf("what was read stays after %v", err)
			}
			return
		}
		again, err := os.ReadFile(write(t, read, parts))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, data) {
			t.Error("a file that no writer makes was read")
		}
	})
}
