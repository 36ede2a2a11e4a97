// Package driver is the part of the CUDA driver API that the engine needs. It opens the
// driver's library at run time, so a build needs no CUDA toolkit and a start no driver. A
// Program collects the work of a stream and hands it over in one cgo call.
//
// Only engine/cuda and packages below it import this one. It owns contexts, memory, modules,
// streams, events and graphs, each until its Close, Free or Unload, and starts no goroutines.
//
// Any goroutine may make any call: each call makes the device's context current on its
// thread, and a cgo call stays on its thread, so callers lock none. One goroutine at a time
// uses a Program. Do not close what another goroutine still uses, except a Device, whose
// Close waits for running calls. Closing twice is allowed; a use after Close is an error.
//
// When a device is lost (Error.Sticky), every call on it fails, Close included. Close all
// objects, then every Device. If the next NewDevice fails too, only a new process helps.
package driver

/*
#cgo CFLAGS: -std=c11
#cgo !asan CFLAGS: -O2 -g0
#cgo asan CFLAGS: -O1
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "tdm_driver.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"
)

// DefaultLibrary is the library that Open("") finds in the system's search path.
const DefaultLibrary = "libcuda.so.1"

// Driver is an opened driver library. It stays open until the process ends.
type Driver struct {
	c       *C.tdm_driver
	version int
}

// Open opens the driver's library, libcuda.so.1 if library is "". The error is one line: what
// is missing, and what to do about it.
func Open(library string) (*Driver, error) {
	library = cmp.Or(library, DefaultLibrary)
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	o := C.tdm_open(path)
	d := &Driver{c: o.driver, version: int(o.version)}
	text := C.GoString(&o.text[0])
	switch o.found {
	case C.TDM_NO_LIBRARY:
		return nil, fmt.Errorf("no CUDA driver: %s: install NVIDIA's driver", text)
	case C.TDM_NO_SYMBOL:
		return nil, fmt.Errorf("%s is not a CUDA driver, or is broken: it has no %s: install NVIDIA's driver, or name its %s",
			library, text, DefaultLibrary)
	case C.TDM_OLD_DRIVER:
		major, minor := d.Version()
		return nil, fmt.Errorf("the driver supports CUDA %d.%d, but 12.0 is needed: update it to version 525 or later", major, minor)
	case C.TDM_NO_INIT:
		return nil, fmt.Errorf("start the CUDA driver: %w: %s", failure(o.outcome, o.texts), remedy(int(o.outcome.code)))
	case C.TDM_NO_MEMORY:
		return nil, errors.New("open the CUDA driver: out of memory: free some and start again")
	}
	return d, nil
}

// remedy says what to do if the driver does not start.
func remedy(code int) string {
	switch code {
	case C.CUDA_ERROR_NO_DEVICE:
		return "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES; a container must be given the GPU"
	case C.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return "library and kernel module have different versions: restart the machine, or reload the module"
	case C.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
		return "the library found is for forward compatibility, which this GPU does not support: remove it from the search path"
	case C.CUDA_ERROR_STUB_LIBRARY:
		return "the library found is a stub of the CUDA toolkit: remove it from the search path"
	case C.CUDA_ERROR_SYSTEM_NOT_READY:
		return "start the services that the GPUs need first, such as nvidia-fabricmanager"
	}
	return "check nvidia-smi and the system's log"
}

// Version is the CUDA version that the driver supports, 12.4 as (12, 4).
func (d *Driver) Version() (major, minor int) { return d.version / 1000, d.version % 1000 / 10 }

// Info describes a device.
type Info struct {
	// Ordinal is its number among the visible devices.
	Ordinal int
	// Name is the product's name, PCI the bus address.
	Name, PCI string
	// Memory is the total in bytes.
	Memory int64
	// Capability is the compute capability, 90 for 9.0.
	Capability      int
	Multiprocessors int
	// SharedPerBlock is the largest shared memory of a block in bytes, for a kernel that
	// calls AllowShared.
	SharedPerBlock int
}

// Devices describes the visible devices, by ordinal.
func (d *Driver) Devices() ([]Info, error) {
	var count C.int
	if err := d.check(C.tdm_device_count(d.c, &count)); err != nil {
		return nil, fmt.Errorf("count the devices: %w", err)
	}
	infos := make([]Info, count)
	for i := range infos {
		var err error
		if infos[i], err = d.info(i); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func (d *Driver) info(ordinal int) (Info, error) {
	var i C.tdm_info
	if err := d.check(C.tdm_device_info(d.c, C.int(ordinal), &i)); err != nil {
		return Info{}, fmt.Errorf("describe device %d: %w", ordinal, err)
	}
	return Info{
		Ordinal:         ordinal,
		Name:            C.GoString(&i.name[0]),
		PCI:             C.GoString(&i.pci[0]),
		Memory:          int64(i.memory),
		Capability:      int(i.capability),
		Multiprocessors: int(i.multiprocessors),
		SharedPerBlock:  int(i.shared),
	}, nil
}
