package transfer

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages, as the CPU engine does for its own.
func adviseHuge(memory []byte) {
	if len(memory) >= 4<<20 {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only a hint
	}
}
