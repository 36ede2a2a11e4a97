// Package blaslt computes products by NVIDIA's cuBLASLt, a library opened at run time: it
// chooses among many kernels of its own, which for many rows come near to what a device
// can do. What a plan computes it computes alike every time, but another number of rows is
// another plan, whose sums may be in another order.
//
// Only engine/cuda and tests import it. It owns handles and plans, each until its Close,
// and starts no goroutines. Any goroutine may call anything; a plan's products that share a
// workspace belong on one stream. Close plans before their handle, and that before the
// device.
package blaslt

/*
#cgo CFLAGS: -std=c11
#cgo !asan CFLAGS: -O2 -g0
#cgo asan CFLAGS: -O1
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "tdm_blaslt.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"
)

// versions are the names of the library that Open looks for, newest first.
func versions() []string { return []string{"libcublasLt.so.13", "libcublasLt.so.12"} }

// folders are where it is below a folder that Open is given: there, in a toolkit, and in
// what Python's packages are installed to.
func folders() []string {
	return []string{".", "lib64", "lib", "nvidia/cu13/lib", "nvidia/cublas/lib"}
}

// Library is an opened cuBLASLt. It stays open until the process ends.
type Library struct {
	c       *C.tdm_blaslt
	version int
}

// Open opens the library at a path: its file, or a folder that has it, such as Python's
// site-packages. "" is libcublasLt.so.13 or .12, where the system finds them. The error is
// one line that says what is missing and what to do about it.
func Open(path string) (*Library, error) {
	var err error
	for _, name := range candidates(path) {
		var l *Library
		if l, err = open(name); err == nil {
			return l, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("no cuBLASLt: %s contains neither %s nor %s: %s", path, versions()[0], versions()[1], remedy)
	}
	return nil, err
}

// candidates are the files that a path may mean.
func candidates(path string) []string {
	if path == "" {
		return versions()
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}
	}
	var files []string
	for _, folder := range folders() {
		for _, name := range versions() {
			file := filepath.Join(path, folder, name)
			if _, err := os.Stat(file); err == nil {
				files = append(files, file)
			}
		}
	}
	return files
}

// remedy is what to do where the library is missing.
const remedy = "install cuBLAS 12 or 13, name its libcublasLt.so, or use the engine's own kernels"

func open(name string) (*Library, error) {
	path := C.CString(name)
	defer C.free(unsafe.Pointer(path))
	o := C.tdm_blaslt_open(path)
	text := C.GoString(&o.text[0])
	switch o.found {
	case C.TDM_BLASLT_NO_LIBRARY:
		return nil, fmt.Errorf("no cuBLASLt: %s: %s", text, remedy)
	case C.TDM_BLASLT_NO_SYMBOL:
		return nil, fmt.Errorf("%s is not cuBLASLt, or is broken: it has no %s: %s", name, text, remedy)
	case C.TDM_BLASLT_OLD:
		return nil, fmt.Errorf("%s is cuBLASLt version %d, but 12.0 (%d) or later is needed: %s", name, int(o.version), C.TDM_BLASLT_LEAST_VERSION, remedy)
	case C.TDM_BLASLT_NO_MEMORY:
		return nil, errors.New("open cuBLASLt: out of memory: free some and start again")
	}
	return &Library{c: o.blaslt, version: int(o.version)}, nil
}

// Version is the library's, 12.4.5 as (12, 4, 5).
func (l *Library) Version() (major, minor, patch int) {
	return l.version / 10000, l.version % 10000 / 100, l.version % 100
}

// Error is the failure of a call of the library.
type Error struct {
	// Call is the library's function.
	Call string
	// Code, Name and Text are the cublasStatus_t, its name, and what the library says of it.
	Code       int
	Name, Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text) }

// check turns an outcome into an error.
func (l *Library) check(o C.tdm_blaslt_outcome) error {
	if o.code == C.CUBLAS_STATUS_SUCCESS {
		return nil
	}
	return l.failure(C.GoString(o.call), int(o.code))
}

func (l *Library) failure(call string, code int) *Error {
	return &Error{
		Call: call, Code: code,
		Name: C.GoString(C.tdm_blaslt_name(l.c, C.int(code))), Text: C.GoString(C.tdm_blaslt_text(l.c, C.int(code))),
	}
}
