package kernels

/*
#include "tdm_limits.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// readerParts is how many parts a Reader's memory has. It reads them in turn, so that
// until it comes to a part again it has read as much as they are together.
const readerParts = 2

// Reader has memory to read, for windows of reading between other computations. It is
// the caller's to Free. It is not safe for concurrent use.
type Reader struct {
	pool   *Pool
	memory Memory
	bytes  int // of a part
	part   int // the next
}

// NewReader allocates two parts of readBytes each, rounded up to 1 MiB for each thread,
// and writes them, so that they are there.
func (p *Pool) NewReader(readBytes int) (*Reader, error) {
	r := &Reader{pool: p, bytes: roundUp(readBytes, p.threads<<20)}
	var err error
	if r.memory, err = Allocate(readerParts * r.bytes); err != nil {
		return nil, fmt.Errorf("memory to read: %w", err)
	}
	C.tdm_limit_touch((*C.uint8_t)(r.memory.start), C.size_t(readerParts*r.bytes))
	return r, nil
}

// Read reads part after part with the loop of Reached.ReadVariant until budget is over,
// and one at least. It returns the bytes of all of them over the time that they took: a
// mean, not the best. It must not overlap another computation on the pool.
func (r *Reader) Read(variant int, budget time.Duration) (bytesPerSecond float64) {
	var bytes float64
	began := time.Now()
	for {
		start := (*C.uint8_t)(unsafe.Add(r.memory.start, r.part*r.bytes))
		bytes += float64(C.tdm_limit_read(r.pool.c, C.int(r.pool.threads), start, C.size_t(r.bytes), C.int(variant)))
		r.part = (r.part + 1) % readerParts
		if took := time.Since(began); took >= budget {
			return bytes / took.Seconds()
		}
	}
}

// Free frees the memory.
func (r *Reader) Free() { r.memory.Free() }
