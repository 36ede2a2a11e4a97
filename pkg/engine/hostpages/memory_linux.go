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

// populate has memory taken as if it were written. Pages that are only partly in it are too.
func populate(memory []byte) error {
	page := uintptr(os.Getpagesize())
	before := uintptr(unsafe.Pointer(unsafe.SliceData(memory))) % page
	start := unsafe.Add(unsafe.Pointer(unsafe.SliceData(memory)), -int(before))
	return unix.Madvise(unsafe.Slice((*byte)(start), len(memory)+int(before)), unix.MADV_POPULATE_WRITE)
}

// yields gives the calling thread the lowest priority.
func yields() { _ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19) }
