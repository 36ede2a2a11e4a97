package driver

/*
#include <stdlib.h>
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Device is a device's primary context, which all users of the device in a process share:
// it lasts until every Device of it is closed.
type Device struct {
	driver *Driver
	info   Info

	mu sync.RWMutex // read during a call, written by Close
	c  *C.tdm_device
}

// NewDevice opens a device by its ordinal.
func (d *Driver) NewDevice(ordinal int) (*Device, error) {
	info, err := d.info(ordinal)
	if err != nil {
		return nil, err
	}
	c := (*C.tdm_device)(C.calloc(1, C.sizeof_tdm_device))
	if c == nil {
		return nil, errors.New("open the device: out of memory: free some and start again")
	}
	if err := d.check(C.tdm_device_open(d.c, C.int(ordinal), c)); err != nil {
		C.free(unsafe.Pointer(c))
		return nil, fmt.Errorf("open device %d: %w", ordinal, err)
	}
	return &Device{driver: d, info: info, c: c}, nil
}

// Info describes the device. It may be asked for after Close.
func (v *Device) Info() Info { return v.info }

// Close waits for the calls under way and releases the context. What was not closed
// before goes with the context.
func (v *Device) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.c == nil {
		return nil
	}
	err := v.driver.check(C.tdm_device_close(v.c))
	C.free(unsafe.Pointer(v.c))
	v.c = nil
	if err != nil {
		return fmt.Errorf("close device %d: %w", v.info.Ordinal, err)
	}
	return nil
}

// Current runs f on a thread where the device's context is current, for other libraries,
// which want that of the caller. f must not close the device.
func (v *Device) Current(f func() error) error {
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.driver.check(C.tdm_device_enter(v.c)); err != nil {
		return fmt.Errorf("device %d: %w", v.info.Ordinal, err)
	}
	return f()
}

// enter begins a call: the device stays open until leave, which the caller owes if there
// is no error.
func (v *Device) enter() error {
	v.mu.RLock()
	if v.c == nil {
		v.mu.RUnlock()
		return fmt.Errorf("device %d: %w", v.info.Ordinal, ErrClosed)
	}
	return nil
}

func (v *Device) leave() { v.mu.RUnlock() }

// owned is what everything of a device that is closed by itself has.
type owned struct {
	device *Device
	closed atomic.Bool
}

func (o *owned) open(what string) error {
	if o.closed.Load() {
		return fmt.Errorf("%s: %w", what, ErrClosed)
	}
	return nil
}

// close frees it by call. A second close does nothing.
func (o *owned) close(what string, call func() C.tdm_outcome) error {
	if o.closed.Swap(true) {
		return nil
	}
	return o.device.release(what, call)
}

// release frees something by call, once. After the device's Close it is gone already.
func (v *Device) release(what string, call func() C.tdm_outcome) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.c == nil {
		return nil
	}
	if err := v.driver.check(call()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
