package model

import (
	"fmt"

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
