package driver

/*
#include <stdlib.h>
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

// logBytes is how much of the driver's compiler's messages an error shows.
const logBytes = 8 << 10

// compiler is done by the first Load of the process, which the others wait for: with that
// the driver loads its compiler, and of several that want it then, some were seen not to
// find it.
var compiler sync.Once

// Module is compiled code on a device.
type Module struct {
	owned
	handle C.CUmodule
}

// Load compiles PTX for the device, which takes seconds unless the driver's cache knows
// it. The error shows what the compiler said, its lines as one.
func (v *Device) Load(ptx []byte) (*Module, error) {
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	text := C.CString(string(ptx))
	defer C.free(unsafe.Pointer(text))
	log := (*C.char)(C.malloc(logBytes))
	if log == nil {
		return nil, errors.New("load PTX: out of memory: free some and start again")
	}
	defer C.free(unsafe.Pointer(log))
	var o C.tdm_outcome
	first := false
	compiler.Do(func() { o, first = C.tdm_module_load(v.c, text, log, logBytes), true })
	if !first {
		o = C.tdm_module_load(v.c, text, log, logBytes)
	}
	if err := v.driver.check(o); err != nil {
		if said := strings.FieldsFunc(C.GoString(log), func(r rune) bool { return r == '\n' }); len(said) > 0 {
			return nil, fmt.Errorf("load PTX: %w: %s", err, strings.Join(said, "; "))
		}
		return nil, fmt.Errorf("load PTX: %w", err)
	}
	return &Module{owned: owned{device: v}, handle: C.CUmodule(o.made)}, nil
}

// Unload drops the module and its functions. None of them may be running.
func (m *Module) Unload() error {
	return m.close("unload a module", func() C.tdm_outcome { return C.tdm_module_unload(m.device.c, m.handle) })
}

func (m *Module) usable() error { return m.open("module") }

// Function is a kernel of a module, and lives as long.
type Function struct {
	module    *Module
	handle    C.CUfunction
	name      string
	arguments int // bytes of its one parameter; -1: the driver does not say
	early     bool
}

// Function finds a kernel, which takes one struct and nothing else.
func (m *Module) Function(name string) (*Function, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	v := m.device
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	f := C.tdm_module_function(v.c, m.handle, cname)
	if err := v.driver.check(f.outcome); err != nil {
		return nil, fmt.Errorf("find kernel %s: %w", name, err)
	}
	arguments := -1
	switch f.parameters {
	case -1:
	case 1:
		arguments = int(f.bytes)
	default:
		return nil, fmt.Errorf("kernel %s takes %d parameters: give it one struct", name, f.parameters)
	}
	return &Function{module: m, handle: C.CUfunction(f.outcome.made), name: name, arguments: arguments}, nil
}

// AllowEarly lets launches of the kernel that come right behind another launch in a program
// begin while that one still runs (programmatic dependent launch). The kernel has to wait
// for it by itself, with griddepcontrol.wait. All such kernels divide a multiprocessor's
// memory between cache and shared memory alike, since a multiprocessor changes that only
// when nothing runs on it. Drivers before 12.3, which cannot keep early launches in graphs,
// make none. Not safe for concurrent use with Launch.
func (f *Function) AllowEarly() error {
	major, minor := f.module.device.driver.Version()
	if f.early = major > 12 || major == 12 && minor >= 3; !f.early {
		return nil
	}
	return f.change("let kernel "+f.name+" prefer shared memory", func(v *Device) C.tdm_outcome { return C.tdm_function_prefer_shared(v.c, f.handle) })
}

// AllowShared allows launches with so much dynamic shared memory, which above 48 KiB is
// refused otherwise. Info.SharedPerBlock is the most.
func (f *Function) AllowShared(bytes int) error {
	what := fmt.Sprintf("allow kernel %s %d bytes of shared memory", f.name, bytes)
	return f.change(what, func(v *Device) C.tdm_outcome { return C.tdm_function_allow_shared(v.c, f.handle, C.int(bytes)) })
}

// change calls the driver about the function.
func (f *Function) change(what string, call func(v *Device) C.tdm_outcome) error {
	if err := f.usable(); err != nil {
		return err
	}
	v := f.module.device
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	if err := v.driver.check(call(v)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// BlocksPerMultiprocessor is how many blocks of so many threads and bytes of dynamic
// shared memory run on one multiprocessor at once.
func (f *Function) BlocksPerMultiprocessor(block, shared int) (int, error) {
	if err := f.usable(); err != nil {
		return 0, err
	}
	v := f.module.device
	if err := v.enter(); err != nil {
		return 0, err
	}
	defer v.leave()
	var blocks C.int
	if err := v.driver.check(C.tdm_function_blocks(v.c, f.handle, C.int(block), C.size_t(shared), &blocks)); err != nil {
		return 0, fmt.Errorf("read how many blocks of kernel %s run at once: %w", f.name, err)
	}
	return int(blocks), nil
}

func (f *Function) usable() error { return f.module.usable() }
