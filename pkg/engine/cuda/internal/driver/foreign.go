package driver

/*
#include "tdm_driver.h"
*/
import "C"

import "unsafe"

// Foreign is a function of another library that puts work on a stream: a Program calls it
// with its stream while the device's context is current.
type Foreign struct {
	// Name is what errors call it.
	Name string
	// Function is a C function, int (*)(const void *arguments, void *stream). It returns
	// 0, or a code of its own, and keeps neither pointer.
	Function unsafe.Pointer
	// Failure is the error of a code.
	Failure func(code int) error
	// Usable refuses what was closed.
	Usable func() error
}

func (f *Foreign) usable() error { return f.Usable() }

// Call appends a call of f. args is a struct without Go pointers; it is copied now.
func Call[A any](p *Program, f *Foreign, args A) {
	op := p.add(C.TDM_FOREIGN, f, int(unsafe.Sizeof(args)))
	if op == nil {
		return
	}
	op.handle = number(f.Function)
	*(*A)(unsafe.Add(unsafe.Pointer(op), C.sizeof_tdm_op)) = args
}

// foreign is the function that an outcome is of; nil: it is one of the driver's.
func (p *Program) foreign(o C.tdm_outcome) *Foreign {
	if o.call != nil || o.op < 0 {
		return nil
	}
	f, _ := p.uses[o.op].(*Foreign)
	return f
}
