package store

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages: what is copied in and out is large.
func adviseHuge(memory []byte) {
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only a hint
}
