package hostpages

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adviseHuge asks for huge pages where some fit: what is copied in and out is large.
func adviseHuge(memory []byte) {
	if len(memory) >= 4<<20 {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only a hint
	}
}

// populate has the kernel back memory as a write would, whole pages at the edges included.
func populate(memory []byte) error {
	page := uintptr(os.Getpagesize())
	before := uintptr(unsafe.Pointer(unsafe.SliceData(memory))) % page
	start := unsafe.Add(unsafe.Pointer(unsafe.SliceData(memory)), -int(before))
	return unix.Madvise(unsafe.Slice((*byte)(start), len(memory)+int(before)), unix.MADV_POPULATE_WRITE)
}
