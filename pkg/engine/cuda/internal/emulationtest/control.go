package emulationtest

/*
#cgo CFLAGS: -std=c11
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "control.h"
*/
import "C"

import (
	"testing"
	"unsafe"
)

// Control is the back door of a library: what a test sets and sees of the emulated device.
type Control struct {
	t testing.TB
	c *C.tdm_control
}

// NewControl opens the back door of the library at path. The test's settings and failures
// end with it.
func NewControl(t testing.TB, path string) *Control {
	t.Helper()
	c := &Control{t: t, c: (*C.tdm_control)(C.calloc(1, C.sizeof_tdm_control))}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	t.Cleanup(func() { C.free(unsafe.Pointer(c.c)) })
	if missing := C.tdm_control_open(name, c.c); missing != nil {
		t.Fatalf("%s is not the emulated driver: %s", path, C.GoString(missing))
	}
	c.Reset()
	t.Cleanup(c.Reset)
	return c
}

// Setting is something about the emulated device that a test chooses.
type Setting string

// The settings. TANDEM_FAKE_CUDA may hold others than the defaults, as in
// "memory=1000000,seed=7".
const (
	Version    Setting = "version"    // 1000*major + 10*minor; 12040
	Devices    Setting = "devices"    // how many; 1
	Memory     Setting = "memory"     // bytes of a device; 256 MiB
	Capability Setting = "capability" // 90
	Seed       Setting = "seed"       // of the order in which streams run; 1
	CublasLt   Setting = "cublaslt"   // its version, 10000*major + 100*minor + patch; 120405

	Events      Setting = "events"      // NVML's: a mask of the types that devices have; all three
	Corrected   Setting = "corrected"   // errors of memory that were put right; 0
	Uncorrected Setting = "uncorrected" // and those that were not; 0
)

// The types of NVML's events.
const (
	EventSingleBit = 0x1
	EventDoubleBit = 0x2
	EventXid       = 0x8
)

// Set chooses a setting.
func (c *Control) Set(s Setting, value uint64) {
	c.t.Helper()
	name := C.CString(string(s))
	defer C.free(unsafe.Pointer(name))
	if C.tdm_control_set(c.c, name, C.ulonglong(value)) == 0 {
		c.t.Fatalf("the emulated driver has no setting %q", s)
	}
}

// Reset takes all settings back and drops the failures that did not happen.
func (c *Control) Reset() { C.tdm_control_reset(c.c) }

// Fail makes a function of the driver or of cuBLASLt, by its symbol, fail once with a code, after so many
// calls that do not fail.
func (c *Control) Fail(call string, after, code int) {
	name := C.CString(call)
	defer C.free(unsafe.Pointer(name))
	C.tdm_control_fail(c.c, name, C.int(after), C.int(code))
}

// Lose loses every device in use: calls answer code until it is released and opened anew.
func (c *Control) Lose(code int) { C.tdm_control_lose(c.c, C.int(code)) }

// Raise makes an event of NVML, on every device: data is the number of an Xid.
func (c *Control) Raise(event, data uint64) {
	C.tdm_control_raise(c.c, C.ulonglong(event), C.ulonglong(data))
}

// Live is what is alive in the library.
type Live struct {
	Devices     int   // opened and not closed
	Allocations int   // of device memory
	Bytes       int64 // of those
	Pinned      int   // allocations of pinned memory
	Modules     int
	Streams     int
	Events      int
	Graphs      int
	Pending     int // operations that were enqueued and did not run
	Products    int // cuBLASLt's handles, descriptors, layouts and preferences
	Watches     int // NVML's sets of events, and starts that were not ended
}

// Live counts what is alive.
func (c *Control) Live() Live {
	counts := C.tdm_control_live(c.c).counts
	return Live{
		Devices: int(counts[0]), Allocations: int(counts[1]), Bytes: int64(counts[2]), Pinned: int(counts[3]),
		Modules: int(counts[4]), Streams: int(counts[5]), Events: int(counts[6]), Graphs: int(counts[7]), Pending: int(counts[8]), Products: int(counts[9]),
		Watches: int(counts[10]),
	}
}

// Copied is what was copied since the last Reset, bytes.
type Copied struct {
	In, Out int64 // between the host and the device
	Within  int64 // device memory
	Copies  int   // however many rows each had
}

// Copied says what was copied, fills and kernels aside.
func (c *Control) Copied() Copied {
	seen := C.tdm_control_seen(c.c).counts
	return Copied{In: int64(seen[0]), Out: int64(seen[1]), Within: int64(seen[2]), Copies: int(seen[3])}
}

// Streams counts those that are alive by their priority: those of the least first.
func (c *Control) Streams() (counts [6]int) {
	seen := C.tdm_control_seen(c.c).counts
	for i := range counts {
		counts[i] = int(seen[4+i])
	}
	return counts
}

// Dot is sum plus the sixteen products of a and b, bf16, by the rule of a tensor core.
func (c *Control) Dot(a, b *[16]uint16, sum float32) float32 {
	return float32(C.tdm_control_dot(c.c, (*C.uint16_t)(&a[0]), (*C.uint16_t)(&b[0]), C.float(sum)))
}

// Multiply adds to sums the product of a [row][k] and b [k][column], bf16, as mma.sync does
// in kernels.
func (c *Control) Multiply(sums *[16][8]float32, a *[16][16]uint16, b *[16][8]uint16) {
	C.tdm_control_multiply(c.c, (*C.float)(&sums[0][0]), (*C.uint16_t)(&a[0][0]), (*C.uint16_t)(&b[0][0]))
}
