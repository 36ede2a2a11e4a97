package driver

/*
#include <stdlib.h>
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Program is operations for a stream, in order, in memory outside the Go heap that grows
// and is used again after Reset. One goroutine uses it at a time. What does not fit (a
// copy past the end of pinned memory, arguments of the wrong size) is kept as an error,
// which Submit, Run and Capture return.
//
// A program may be submitted many times. It keeps nothing alive: what it names must not
// be closed before it is submitted, which is checked, or before it ran, which is not.
type Program struct {
	device         *Device
	memory         unsafe.Pointer
	size, capacity int
	uses           []resource // of each operation; nil where it names nothing
	last           C.int32_t  // the kind of the operation added last; none: -1
	err            error      // the first
}

// resource is something that an operation names.
type resource interface{ usable() error }

// NewProgram makes an empty program. It takes memory when something is added.
func (v *Device) NewProgram() *Program { return &Program{device: v, last: -1} }

// Reset empties the program and keeps its memory.
func (p *Program) Reset() {
	p.size, p.last, p.err = 0, -1, nil
	clear(p.uses)
	p.uses = p.uses[:0]
}

// Free empties the program and frees its memory. It may be used again.
func (p *Program) Free() {
	p.Reset()
	C.free(p.memory)
	p.memory, p.capacity = nil, 0
}

// Len is how many operations there are.
func (p *Program) Len() int { return len(p.uses) }

// fail keeps the first error.
func (p *Program) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("operation %d: "+format, append([]any{len(p.uses)}, args...)...)
	}
}

// add appends an operation with space for arguments behind it; nil: there is no memory.
func (p *Program) add(kind C.int32_t, uses resource, arguments int) *C.tdm_op {
	need := C.sizeof_tdm_op + (arguments+15)&^15
	if p.size+need > p.capacity && !p.grow(need) {
		return nil
	}
	op := (*C.tdm_op)(unsafe.Add(p.memory, p.size))
	*op = C.tdm_op{kind: kind, size: C.uint32_t(need)}
	p.size += need
	p.last = kind
	p.uses = append(p.uses, uses)
	return op
}

func (p *Program) grow(need int) bool {
	capacity := max(2*p.capacity, p.size+need, 4<<10)
	memory := C.realloc(p.memory, C.size_t(capacity))
	if memory == nil {
		p.fail("out of memory for a program of %d bytes: free some", capacity)
		return false
	}
	p.memory, p.capacity = memory, capacity
	return true
}

// number is a pointer to C memory as an operation has it.
func number(p unsafe.Pointer) C.uint64_t { return C.uint64_t(uintptr(p)) }

// Launch appends a launch of f over grid blocks of block threads, with shared bytes of
// dynamic shared memory. args is the kernel's one parameter, a struct without Go pointers
// laid out as the kernel's; it is copied now. Its size is checked where the driver knows
// it (12.4 and later).
func Launch[A any](p *Program, f *Function, grid [3]int, block, shared int, args A) {
	size := int(unsafe.Sizeof(args))
	if f.arguments >= 0 && f.arguments != size {
		p.fail("launch of %s: got %d bytes of arguments, want %d", f.name, size, f.arguments)
		return
	}
	for _, n := range [...]int{grid[0], grid[1], grid[2], block} {
		if n < 1 || n > math.MaxInt32 {
			p.fail("launch of %s: grid %v of %d threads: every size must be at least 1", f.name, grid, block)
			return
		}
	}
	if shared < 0 || shared > math.MaxInt32 {
		p.fail("launch of %s: %d bytes of shared memory", f.name, shared)
		return
	}
	early := f.early && p.last == C.TDM_LAUNCH
	op := p.add(C.TDM_LAUNCH, f, size)
	if op == nil {
		return
	}
	if early {
		op.value = 1
	}
	op.handle = number(unsafe.Pointer(f.handle))
	op.grid = [3]C.uint32_t{C.uint32_t(grid[0]), C.uint32_t(grid[1]), C.uint32_t(grid[2])}
	op.block, op.shared = C.uint32_t(block), C.uint32_t(shared)
	*(*A)(unsafe.Add(unsafe.Pointer(op), C.sizeof_tdm_op)) = args
}

// within reports whether bytes from offset on lie in h, and keeps an error if not.
func (p *Program) within(what string, h *Host, offset, bytes int) bool {
	if offset < 0 || bytes < 0 || offset > h.size || bytes > h.size-offset {
		p.fail("%s: %d bytes from %d on, of pinned memory of %d bytes", what, bytes, offset, h.size)
		return false
	}
	return true
}

// CopyIn appends a copy to the device of bytes of from, offset on. Nothing is copied where
// bytes is 0.
func (p *Program) CopyIn(to Address, from *Host, offset, bytes int) {
	if !p.within("copy in", from, offset, bytes) || bytes == 0 {
		return
	}
	if op := p.add(C.TDM_COPY_IN, from, 0); op != nil {
		op.to, op.handle, op.bytes = C.CUdeviceptr(to), number(unsafe.Add(from.memory, offset)), C.uint64_t(bytes)
	}
}

// CopyOut appends a copy from the device to bytes of to, offset on.
func (p *Program) CopyOut(to *Host, offset int, from Address, bytes int) {
	if !p.within("copy out", to, offset, bytes) || bytes == 0 {
		return
	}
	if op := p.add(C.TDM_COPY_OUT, to, 0); op != nil {
		op.handle, op.from, op.bytes = number(unsafe.Add(to.memory, offset)), C.CUdeviceptr(from), C.uint64_t(bytes)
	}
}

// Copy appends a copy within device memory. The two ends must not overlap.
func (p *Program) Copy(to, from Address, bytes int) {
	if bytes < 0 {
		p.fail("copy of %d bytes", bytes)
		return
	}
	if bytes == 0 {
		return
	}
	if op := p.add(C.TDM_COPY, nil, 0); op != nil {
		op.to, op.from, op.bytes = C.CUdeviceptr(to), C.CUdeviceptr(from), C.uint64_t(bytes)
	}
}

// MostPitch is the most that rows can be apart, bytes.
const MostPitch = math.MaxInt32

// Rows are some rows of Bytes each. In device memory they are Pitch apart, which is Bytes
// at least; in the host's they lie one behind another.
type Rows struct{ Count, Bytes, Pitch int }

// piece says whether rows are one piece on both sides, which is a plain copy.
func (r Rows) piece() bool { return r.Count == 1 || r.Pitch == r.Bytes }

// CopyRowsIn appends a copy of rows to the device, in one operation: where many are
// small, they take less time than as many copies.
func (p *Program) CopyRowsIn(to Address, from *Host, offset int, rows Rows) {
	if !p.withinRows("copy in of rows", from, offset, rows) {
		return
	}
	if rows.piece() {
		p.CopyIn(to, from, offset, rows.Count*rows.Bytes)
		return
	}
	p.addRows(rows, from, number(unsafe.Add(from.memory, offset)), to, 0, rows.Pitch, rows.Bytes)
}

// CopyRowsOut appends a copy of rows from the device.
func (p *Program) CopyRowsOut(to *Host, offset int, from Address, rows Rows) {
	if !p.withinRows("copy out of rows", to, offset, rows) {
		return
	}
	if rows.piece() {
		p.CopyOut(to, offset, from, rows.Count*rows.Bytes)
		return
	}
	p.addRows(rows, to, number(unsafe.Add(to.memory, offset)), 0, from, rows.Bytes, rows.Pitch)
}

// CopyRows appends a copy of rows within device memory, as far apart at both ends. The two
// must not overlap.
func (p *Program) CopyRows(to, from Address, rows Rows) {
	switch {
	case !p.goodRows("copy of rows", rows):
	case rows.piece():
		p.Copy(to, from, rows.Count*rows.Bytes)
	default:
		p.addRows(rows, nil, 0, to, from, rows.Pitch, rows.Pitch)
	}
}

// withinRows is goodRows, and within for the host's side.
func (p *Program) withinRows(what string, h *Host, offset int, rows Rows) bool {
	return p.goodRows(what, rows) && p.within(what, h, offset, rows.Count*rows.Bytes)
}

// goodRows reports whether there is something to copy, and keeps an error if rows are none.
func (p *Program) goodRows(what string, r Rows) bool {
	if r.Count < 0 || r.Count > math.MaxInt32 || r.Bytes < 0 || r.Pitch < r.Bytes || r.Pitch > MostPitch {
		p.fail("%s: %d of %d bytes, %d apart", what, r.Count, r.Bytes, r.Pitch)
		return false
	}
	return r.Count > 0 && r.Bytes > 0
}

func (p *Program) addRows(rows Rows, uses resource, host C.uint64_t, to, from Address, toPitch, fromPitch int) {
	if op := p.add(C.TDM_COPY_ROWS, uses, 0); op != nil {
		op.handle, op.to, op.from, op.bytes = host, C.CUdeviceptr(to), C.CUdeviceptr(from), C.uint64_t(rows.Bytes)
		op.grid = [3]C.uint32_t{C.uint32_t(rows.Count), C.uint32_t(toPitch), C.uint32_t(fromPitch)}
	}
}

// Fill appends the filling of device memory with a byte.
func (p *Program) Fill(to Address, value byte, bytes int64) {
	if bytes < 0 {
		p.fail("fill of %d bytes", bytes)
		return
	}
	if bytes == 0 {
		return
	}
	if op := p.add(C.TDM_FILL, nil, 0); op != nil {
		op.to, op.value, op.bytes = C.CUdeviceptr(to), C.uint32_t(value), C.uint64_t(bytes)
	}
}

// Record appends the recording of an event: it is reached when all before it is done.
func (p *Program) Record(e *Event) {
	if op := p.add(C.TDM_RECORD, e, 0); op != nil {
		op.handle = number(unsafe.Pointer(e.handle))
	}
}

// Graph appends the launch of a graph. A graph cannot hold another.
func (p *Program) Graph(g *Graph) {
	if op := p.add(C.TDM_GRAPH, g, 0); op != nil {
		op.handle = number(unsafe.Pointer(g.handle))
	}
}

// ready says whether the program can be handed over.
func (p *Program) ready() error {
	if p.err != nil {
		return p.err
	}
	for i, r := range p.uses {
		if r == nil {
			continue
		}
		if err := r.usable(); err != nil {
			return fmt.Errorf("operation %d, %s: %w", i, p.describe(i), err)
		}
	}
	return nil
}

// describe names an operation.
func (p *Program) describe(index int) string {
	at := p.memory
	for range index {
		at = unsafe.Add(at, (*C.tdm_op)(at).size)
	}
	switch op := (*C.tdm_op)(at); op.kind {
	case C.TDM_LAUNCH:
		if f, ok := p.uses[index].(*Function); ok {
			return "launch of " + f.name
		}
	case C.TDM_COPY_IN:
		return fmt.Sprintf("copy in of %d bytes", op.bytes)
	case C.TDM_COPY_OUT:
		return fmt.Sprintf("copy out of %d bytes", op.bytes)
	case C.TDM_COPY:
		return fmt.Sprintf("copy of %d bytes", op.bytes)
	case C.TDM_COPY_ROWS:
		return fmt.Sprintf("copy of %d rows of %d bytes", op.grid[0], op.bytes)
	case C.TDM_FILL:
		return fmt.Sprintf("fill of %d bytes", op.bytes)
	case C.TDM_RECORD:
		return "record"
	case C.TDM_GRAPH:
		return "graph"
	case C.TDM_FOREIGN:
		if f, ok := p.uses[index].(*Foreign); ok {
			return f.Name
		}
	}
	return "unknown"
}

// failed turns what a submission gave into an error.
func (p *Program) failed(o C.tdm_outcome) error {
	if o.code == C.CUDA_SUCCESS {
		return nil
	}
	if f := p.foreign(o); f != nil {
		return fmt.Errorf("operation %d, %s: %w", int(o.op), f.Name, f.Failure(int(o.code)))
	}
	err := p.device.driver.check(o)
	if o.op < 0 {
		return err
	}
	return fmt.Errorf("operation %d, %s: %w", int(o.op), p.describe(int(o.op)), err)
}

var errForeign = errors.New("the program was made for another device: make it on the stream's device")
