package kernels

/*
#include "tdm_limits.h"
*/
import "C"

import (
	"fmt"
	"time"
)

// peakRounds keeps one run of the peak's loop under some milliseconds, so that a
// run without interruption is likely among several.
const peakRounds = 200_000

// Limits measures what the pool's threads reach with the instructions of s: the
// best rate of several variants, each run in turn until budget is over, and once
// at least. readBytes is the size of the memory that is read, which should be
// larger than any cache. It must not overlap another computation on the pool.
func (p *Pool) Limits(s Set, budget time.Duration, readBytes int) (flopsPerSecond, readBytesPerSecond float64, err error) {
	readBytes = roundUp(readBytes, p.threads<<16)
	memory, err := Allocate(readBytes)
	if err != nil {
		return 0, 0, fmt.Errorf("measure the speed of memory: %w", err)
	}
	defer memory.Free()
	start := (*C.uint8_t)(memory.start)
	C.tdm_limit_touch(start, C.size_t(readBytes))
	rounds := C.long(peakRounds)
	if s.Name() == "portable" {
		rounds /= 8
	}
	began := time.Now()
	for first := true; first || time.Since(began) < budget; first = false {
		for v := range C.int(C.TDM_PEAK_VARIANTS) {
			flopsPerSecond = max(flopsPerSecond, rate(func() C.double {
				return C.tdm_limit_peak(p.c, C.int(p.threads), s.c, v, rounds)
			}))
		}
		for v := range C.int(C.TDM_READ_VARIANTS) {
			readBytesPerSecond = max(readBytesPerSecond, rate(func() C.double {
				return C.tdm_limit_read(p.c, C.int(p.threads), start, C.size_t(readBytes), v)
			}))
		}
	}
	return flopsPerSecond, readBytesPerSecond, nil
}

func rate(run func() C.double) float64 {
	began := time.Now()
	done := float64(run())
	return done / time.Since(began).Seconds()
}
