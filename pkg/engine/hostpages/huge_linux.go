package hostpages

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages where some fit: what is copied in and out is large.
func adviseHuge(memory []byte) {
	if len(memory) >= 4<<20 {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only a hint
	}
}
