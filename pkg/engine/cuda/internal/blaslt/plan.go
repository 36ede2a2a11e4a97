package blaslt

/*
#include <stdlib.h>
#include "tdm_blaslt.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// errClosed is the error of a use after Close.
var errClosed = errors.New("closed")

// Handle is the library's state for a device.
type Handle struct {
	library *Library
	device  *driver.Device
	c       C.cublasLtHandle_t
	closed  atomic.Bool
}

// NewHandle makes a handle.
func (l *Library) NewHandle(device *driver.Device) (*Handle, error) {
	h := &Handle{library: l, device: device}
	err := device.Current(func() error {
		o := C.tdm_blaslt_create(l.c)
		h.c = C.cublasLtHandle_t(o.made)
		return l.check(o)
	})
	if err != nil {
		return nil, fmt.Errorf("start cuBLASLt: %w", err)
	}
	return h, nil
}

// Close drops the handle. No running product may use it.
func (h *Handle) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	err := h.device.Current(func() error { return h.library.check(C.tdm_blaslt_destroy(h.library.c, h.c)) })
	if err != nil {
		return fmt.Errorf("close cuBLASLt: %w", err)
	}
	return nil
}

// Shape is the shape of a product out[Rows][Outputs] = a[Rows][K] * transposed w[Outputs][K], of
// bf16 with float32 sums. Sizes, and the distances of rows LdA, LdW and LdOut, are in
// elements.
type Shape struct {
	Rows, Outputs, K, LdA, LdW, LdOut int
	// Narrow makes out bf16 instead of float32.
	Narrow bool
	// Add adds the product to out instead of replacing it.
	Add bool
}

// Plan is the library's algorithm for products of one shape.
type Plan struct {
	handle   *Handle
	c        *C.tdm_blaslt_plan
	multiply driver.Foreign
	closed   atomic.Bool
}

// arguments are a tdm_blaslt_arguments.
type arguments struct {
	plan                 uint64
	a, w, out, workspace driver.Address
}

const _ = -uint(unsafe.Sizeof(arguments{}) ^ C.sizeof_tdm_blaslt_arguments)

// Plan asks the library how to compute products of a shape. The algorithm uses at most the given
// bytes of workspace and does not split sums.
func (h *Handle) Plan(s Shape, workspaceBytes int64) (*Plan, error) {
	c := (*C.tdm_blaslt_plan)(C.calloc(1, C.sizeof_tdm_blaslt_plan))
	if c == nil {
		return nil, errors.New("plan a product: out of memory: free some and start again")
	}
	shape := C.tdm_blaslt_shape{
		rows: C.int64_t(s.Rows), outputs: C.int64_t(s.Outputs), k: C.int64_t(s.K),
		lda: C.int64_t(s.LdA), ldw: C.int64_t(s.LdW), ldo: C.int64_t(s.LdOut),
		workspace: C.uint64_t(workspaceBytes), narrow: flag(s.Narrow), add: flag(s.Add),
	}
	err := h.device.Current(func() error {
		if h.closed.Load() {
			return fmt.Errorf("cuBLASLt is %w", errClosed)
		}
		return h.library.check(C.tdm_blaslt_plan_make(h.library.c, h.c, &shape, c))
	})
	if err != nil {
		C.free(unsafe.Pointer(c))
		return nil, fmt.Errorf("plan a product of %d rows, %d outputs and %d elements: %w", s.Rows, s.Outputs, s.K, err)
	}
	p := &Plan{handle: h, c: c}
	p.multiply = driver.Foreign{
		Name:     fmt.Sprintf("product of %d rows and %d outputs", s.Rows, s.Outputs),
		Function: C.tdm_blaslt_multiply,
		Failure:  func(code int) error { return h.library.failure("cublasLtMatmul", code) },
		Usable:   p.usable,
	}
	return p, nil
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (p *Plan) usable() error {
	if p.closed.Load() || p.handle.closed.Load() {
		return fmt.Errorf("plan of a product: %w", errClosed)
	}
	return nil
}

// Multiply appends the product to a program for the plan's device. Addresses are multiples
// of 256; the workspace has as many bytes as the plan was made with.
func (p *Plan) Multiply(program *driver.Program, a, w, out, workspace driver.Address) {
	driver.Call(program, &p.multiply, arguments{
		plan: uint64(uintptr(unsafe.Pointer(p.c))), a: a, w: w, out: out, workspace: workspace,
	})
}

// Close frees the plan. No program that uses it may be submitted afterwards; captured graphs
// still work.
func (p *Plan) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	err := p.handle.library.check(C.tdm_blaslt_plan_free(p.c))
	C.free(unsafe.Pointer(p.c))
	p.c = nil
	if err != nil {
		return fmt.Errorf("free the plan of a product: %w", err)
	}
	return nil
}
