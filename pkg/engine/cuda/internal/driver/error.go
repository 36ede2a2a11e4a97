package driver

/*
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// ErrClosed is what a closed object answers.
var ErrClosed = errors.New("closed")

// Error is the failure of a call of the driver. With asynchronous work it may be that of
// an earlier operation.
type Error struct {
	// Call is the driver's function.
	Call string
	// Code, Name and Text are the CUresult, its name, and what the driver says of it.
	Code       int
	Name, Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text) }

// OutOfMemory reports that memory ran out, which loses nothing.
func (e *Error) OutOfMemory() bool { return e.Code == C.CUDA_ERROR_OUT_OF_MEMORY }

// Sticky reports that the context is lost: all that follows on the device fails too, until
// every Device of it is closed.
func (e *Error) Sticky() bool {
	switch e.Code {
	case C.CUDA_ERROR_ECC_UNCORRECTABLE, C.CUDA_ERROR_NVLINK_UNCORRECTABLE, C.CUDA_ERROR_CONTAINED,
		C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_CONTEXT_IS_DESTROYED,
		C.CUDA_ERROR_ASSERT, C.CUDA_ERROR_HARDWARE_STACK_ERROR, C.CUDA_ERROR_ILLEGAL_INSTRUCTION,
		C.CUDA_ERROR_MISALIGNED_ADDRESS, C.CUDA_ERROR_INVALID_ADDRESS_SPACE, C.CUDA_ERROR_INVALID_PC,
		C.CUDA_ERROR_LAUNCH_FAILED, C.CUDA_ERROR_TENSOR_MEMORY_LEAK, C.CUDA_ERROR_MPS_CLIENT_TERMINATED,
		C.CUDA_ERROR_EXTERNAL_DEVICE:
		return true
	}
	return false
}

// check turns an outcome into an error.
func (d *Driver) check(o C.tdm_outcome) error {
	if o.code == C.CUDA_SUCCESS {
		return nil
	}
	return failure(o, C.tdm_error_texts(d.c, o.code))
}

func failure(o C.tdm_outcome, texts C.tdm_texts) *Error {
	return &Error{Call: C.GoString(o.call), Code: int(o.code), Name: C.GoString(texts.name), Text: C.GoString(texts.text)}
}
