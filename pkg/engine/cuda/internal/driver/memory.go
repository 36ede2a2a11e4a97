package driver

/*
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Address is an address in device memory.
type Address uint64

// Memory is how much of the device's memory is free, to all processes, and how much there
// is, in bytes.
func (v *Device) Memory() (free, total int64, err error) {
	if err := v.enter(); err != nil {
		return 0, 0, err
	}
	defer v.leave()
	var f, t C.size_t
	if err := v.driver.check(C.tdm_memory_info(v.c, &f, &t)); err != nil {
		return 0, 0, fmt.Errorf("read the free memory: %w", err)
	}
	return int64(f), int64(t), nil
}

// Allocate allocates device memory, aligned to 256 bytes, its contents unknown. The caller
// frees it. An Error that is OutOfMemory says that there is not enough in one piece.
func (v *Device) Allocate(bytes int64) (Address, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("allocate %d bytes of device memory: ask for at least one", bytes)
	}
	if err := v.enter(); err != nil {
		return 0, err
	}
	defer v.leave()
	var address C.CUdeviceptr
	if err := v.driver.check(C.tdm_device_allocate(v.c, C.size_t(bytes), &address)); err != nil {
		return 0, fmt.Errorf("allocate %d bytes of device memory: %w", bytes, err)
	}
	return Address(address), nil
}

// Free frees what Allocate gave, and may wait for all work of the device. Address 0 is
// nothing to free.
func (v *Device) Free(address Address) error {
	if address == 0 {
		return nil
	}
	return v.release("free device memory", func() C.tdm_outcome { return C.tdm_device_free(v.c, C.CUdeviceptr(address)) })
}

// Host is host memory that is pinned, so that copies run beside everything else.
type Host struct {
	owned
	memory     unsafe.Pointer
	size       int
	registered bool // the memory is the caller's
}

// AllocateHost allocates pinned memory, its contents unknown. The caller frees it.
func (v *Device) AllocateHost(bytes int) (*Host, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: ask for at least one", bytes)
	}
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	o := C.tdm_allocate_host(v.c, C.size_t(bytes))
	if err := v.driver.check(o); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, err)
	}
	return &Host{owned: owned{device: v}, memory: o.made, size: bytes}, nil
}

// RegisterHost pins memory that the caller allocated outside the Go heap, which has to stay
// until Free has succeeded.
func (v *Device) RegisterHost(memory []byte) (*Host, error) {
	if len(memory) == 0 {
		return nil, errors.New("pin 0 bytes of memory: pass at least one")
	}
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	start := unsafe.Pointer(unsafe.SliceData(memory))
	if err := v.driver.check(C.tdm_register_host(v.c, start, C.size_t(len(memory)))); err != nil {
		return nil, fmt.Errorf("pin %d bytes of memory: %w", len(memory), err)
	}
	return &Host{owned: owned{device: v}, memory: start, size: len(memory), registered: true}, nil
}

// Bytes is the memory, until Free: nil after it. A copy reads or writes it when the copy
// runs, not when it is submitted.
func (h *Host) Bytes() []byte {
	if h.closed.Load() {
		return nil
	}
	return unsafe.Slice((*byte)(h.memory), h.size)
}

// Free frees the memory, or unpins what was registered. No copy may be under way, and
// nobody may keep Bytes of memory that is freed.
func (h *Host) Free() error {
	if h.registered {
		return h.close("unpin memory", func() C.tdm_outcome { return C.tdm_unregister_host(h.device.c, h.memory) })
	}
	return h.close("free pinned memory", func() C.tdm_outcome { return C.tdm_free_host(h.device.c, h.memory) })
}

func (h *Host) usable() error { return h.open("pinned memory") }
