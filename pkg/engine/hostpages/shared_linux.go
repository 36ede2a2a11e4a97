package hostpages

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

var _ engine.Sharing = (*Pages)(nil)

// hugeBytes is the size of a huge page, to which a mapping must be aligned to get any.
const hugeBytes = 2 << 20

// MapShared is Map over a file in memory that other processes can map (engine.Sharing). Huge
// pages need Collapse. The error is that of the system, where it has no such files.
func MapShared(layout kvcache.Layout, blocks int) (*Pages, error) {
	size := blocks * layout.PageBytes()
	file, err := newFile(size)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for %d blocks of %d bytes: %w", blocks, layout.PageBytes(), err)
	}
	memory, free, err := mapFile(file, size)
	if err != nil {
		_ = file.Close() // nobody has seen it
		return nil, fmt.Errorf("map %d blocks of %d bytes: %w", blocks, layout.PageBytes(), err)
	}
	p := Over(layout, blocks, memory, func() error { return errors.Join(free(), file.Close()) })
	p.file = file
	return p, nil
}

// newFile is a file in memory of at least so many bytes. Nobody can change its size: one who
// maps it could otherwise have others killed by shrinking it.
func newFile(size int) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("tandem-kv", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("tandem-kv", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "tandem-kv")
	whole := (size + os.Getpagesize() - 1) / os.Getpagesize() * os.Getpagesize()
	if err = file.Truncate(int64(whole)); err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// mapFile maps a file where huge pages fit.
func mapFile(file *os.File, size int) (memory []byte, free func() error, err error) {
	reserved, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+hugeBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	free = func() error {
		return os.NewSyscallError("munmap", unix.MunmapPtr(reserved, uintptr(size)+hugeBytes))
	}
	start := unsafe.Add(reserved, -uintptr(reserved)%hugeBytes)
	if _, err = unix.MmapPtr(int(file.Fd()), 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("mmap", err), free())
	}
	memory = unsafe.Slice((*byte)(start), size)
	adviseHuge(memory)
	return memory, free, nil
}

// Collapse takes all of the memory now, in huge pages where the kernel has some. Files in memory
// have none at the first touch where /sys/kernel/mm/transparent_hugepage/shmem_enabled is never,
// as on most systems, but for those who ask for them like this. In small pages, changing what a
// mapping allows takes about a hundred times as long. What the kernel does not give like this is taken
// as it is used (Reached). Call it before the memory is used.
func (p *Pages) Collapse() {
	memory := p.Bytes()
	whole := memory[:len(memory)/hugeBytes*hugeBytes]
	for at := 0; at < len(whole); at += hugeBytes {
		whole[at] = 0 // only what is there can be collapsed
	}
	if len(whole) == 0 {
		return
	}
	if err := unix.Madvise(whole, unix.MADV_COLLAPSE); err == nil { // small pages serve as well
		p.taken.Store(int64(len(whole)))
	}
}
