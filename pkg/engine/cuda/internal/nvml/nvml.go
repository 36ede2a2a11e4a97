// Package nvml hears from the driver what happens to a GPU, by NVIDIA's management library
// (NVML), which is opened at run time and comes with the driver.
//
// Only engine/cuda imports it. A Watch owns one event set; it starts no goroutines. One
// goroutine waits at a time; Errors may be asked for beside it, and Close comes after both.
package nvml

/*
#cgo CFLAGS: -std=c11
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "tdm_nvml.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// DefaultLibrary is what Open("") opens, by the system's search path.
const DefaultLibrary = "libnvidia-ml.so.1"

// Event is something that happened to the device.
type Event struct {
	Kind Kind
	// Xid is the number of an Xid, 999 if the library does not know it.
	Xid uint64
}

// Kind is a kind of event.
type Kind int

// The kinds of events. None: nothing happened while somebody waited.
const (
	None Kind = iota
	Xid
	Corrected   // an error of memory, which ECC put right
	Uncorrected // one that it could not
)

// Error is the failure of a call of the library.
type Error struct {
	// Call is the library's function.
	Call string
	// Code is the nvmlReturn_t, and Text what the library says of it.
	Code int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// Lost says whether the library does not reach the device any more, which is off the bus.
func (e *Error) Lost() bool { return e.Code == C.NVML_ERROR_GPU_IS_LOST }

// Watch awaits the events of a device.
type Watch struct{ c *C.tdm_nvml }

// Open opens a library, libnvidia-ml.so.1 if it is "", and awaits the events of the device
// at a PCI address, such as 0000:3b:00.0: what happens from now on. The error is one line
// that says what is missing.
func Open(library, address string) (*Watch, error) {
	library = cmp.Or(library, DefaultLibrary)
	path, at := C.CString(library), C.CString(address)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(at))
	w := &Watch{(*C.tdm_nvml)(C.calloc(1, C.sizeof_tdm_nvml))}
	if w.c == nil {
		return nil, errors.New("open NVML: out of memory: free some and start again")
	}
	o := C.tdm_nvml_open(path, at, w.c)
	if o.found == C.TDM_NVML_OPENED {
		return w, nil
	}
	C.free(unsafe.Pointer(w.c))
	text := C.GoString(&o.text[0])
	switch o.found {
	case C.TDM_NVML_NO_LIBRARY:
		return nil, fmt.Errorf("no NVML: %s", text)
	case C.TDM_NVML_NO_SYMBOL:
		return nil, fmt.Errorf("%s is not NVML, or is too old: it has no %s", library, text)
	case C.TDM_NVML_NO_EVENTS:
		return nil, fmt.Errorf("the GPU at %s does not report errors through NVML", address)
	}
	return nil, fmt.Errorf("watch the GPU at %s through NVML: %w", address, &Error{Call: C.GoString(o.outcome.call), Code: int(o.outcome.code), Text: text})
}

// Wait waits for an event, for so long at most; after that there is None. Events that come
// while nobody waits are kept.
func (w *Watch) Wait(most time.Duration) (Event, error) {
	var data C.tdm_nvml_event
	o := C.tdm_nvml_wait(w.c, C.uint(max(most, 0).Milliseconds()), &data)
	if o.code == C.NVML_ERROR_TIMEOUT {
		return Event{}, nil
	}
	if err := w.check(o); err != nil {
		return Event{}, err
	}
	switch data._type {
	case C.nvmlEventTypeXidCriticalError:
		return Event{Kind: Xid, Xid: uint64(data.xid)}, nil
	case C.nvmlEventTypeSingleBitEccError:
		return Event{Kind: Corrected}, nil
	case C.nvmlEventTypeDoubleBitEccError:
		return Event{Kind: Uncorrected}, nil
	}
	return Event{}, nil
}

// Errors counts the device's errors of memory since the driver was loaded.
func (w *Watch) Errors() (corrected, uncorrected uint64, err error) {
	var right, wrong C.ulonglong
	if err := w.check(C.tdm_nvml_errors(w.c, &right, &wrong)); err != nil {
		return 0, 0, err
	}
	return uint64(right), uint64(wrong), nil
}

// Close ends the watch. It is called once.
func (w *Watch) Close() error {
	err := w.check(C.tdm_nvml_close(w.c))
	C.free(unsafe.Pointer(w.c))
	w.c = nil
	return err
}

func (w *Watch) check(o C.tdm_nvml_outcome) error {
	if o.code == C.NVML_SUCCESS {
		return nil
	}
	return &Error{Call: C.GoString(o.call), Code: int(o.code), Text: C.GoString(C.tdm_nvml_text(w.c, o.code))}
}
