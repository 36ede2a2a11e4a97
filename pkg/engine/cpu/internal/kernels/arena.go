package kernels

/*
#include "tdm_kernels.h"
*/
import "C"

import "unsafe"

// arena cuts one Memory into 64-byte aligned parts. It is used twice: first
// without memory, to add up, then with it, to hand out. Under AddressSanitizer
// there are gaps between the parts, which nobody may touch.
type arena struct {
	memory Memory
	used   int
	parts  [][]byte // what was handed out, in order
}

func (a *arena) take(bytes int) unsafe.Pointer {
	at := a.used
	a.used += roundUp(bytes, 64) + C.TDM_GAP
	if a.memory.start == nil {
		return nil
	}
	if a.used > a.memory.size {
		return nil // lay is deterministic, so both passes agree
	}
	a.memory.forbid(at+bytes, a.used)
	start := unsafe.Add(a.memory.start, at)
	a.parts = append(a.parts, unsafe.Slice((*byte)(start), bytes))
	return start
}

// build runs lay over an arena of exactly the size it asks for.
func build(lay func(*arena)) (Memory, error) {
	memory, err := Allocate(measure(lay))
	if err != nil {
		return Memory{}, err
	}
	a := arena{memory: memory}
	lay(&a)
	memory.forbid(a.used, memory.size)
	return memory, nil
}

// measure is the size of the memory that build allocates for lay.
func measure(lay func(*arena)) int {
	var a arena
	lay(&a)
	return max(a.used, 64) + 64 // a spare line: nothing ends at the mapping's end
}

func take[T any](a *arena, n int) *T {
	var t T
	return (*T)(a.take(n * int(unsafe.Sizeof(t))))
}
