package model

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a whole file in memory, read-only.
type mapping struct {
	file string
	data []byte
}

func mapFile(path string) (*mapping, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping outlives it
	if size == 0 {
		return &mapping{file: path}, nil
	}
	if int64(int(size)) != size {
		return nil, &Error{File: path, Problem: fmt.Sprintf("%d bytes are too many for this machine's addresses", size), Remedy: "use a 64-bit machine"}
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &Error{File: path, Problem: "cannot be mapped into memory", Err: err, Remedy: "raise the limit on address space (ulimit -v)"}
	}
	return &mapping{file: path, data: data}, nil
}

// release drops the pages that lie wholly inside part from this process.
func (m *mapping) release(part []byte) {
	if len(part) == 0 || len(m.data) == 0 {
		return
	}
	page := uintptr(os.Getpagesize())
	base := uintptr(unsafe.Pointer(unsafe.SliceData(m.data)))
	start := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - base
	end := start + uintptr(len(part))
	start = (start + page - 1) / page * page
	end = end / page * page
	if start < end && end <= uintptr(len(m.data)) {
		// It is advice: a kernel that does not take it costs memory, no more.
		_ = unix.Madvise(m.data[start:end], unix.MADV_DONTNEED)
	}
}

func (m *mapping) close() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	if err := unix.Munmap(data); err != nil {
		return fmt.Errorf("unmap %s: %w", m.file, err)
	}
	return nil
}
