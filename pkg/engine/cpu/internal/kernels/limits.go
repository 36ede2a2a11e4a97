package kernels

/*
#include "tdm_limits.h"
*/
import "C"

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// peakRounds keeps one run of the peak's loop under some milliseconds, so that a
// run without interruption is likely among several.
const peakRounds = 200_000

// Reached is what the threads of a pool reach.
type Reached struct {
	FLOPsPerSecond, ReadBytesPerSecond float64
	// ReadVariant is the loop that read fastest, for Reader.Read.
	ReadVariant int
	// CPUShare is how much of the time the threads had a processor, about 1 on a
	// machine that does nothing else. What else this process computed counts too.
	CPUShare float64
}

// Limits measures what the pool's threads reach with the instructions of s: the
// best rate of several variants, each run in turn until budget is over, and once
// at least. readBytes is the size of the memory that is read, which should be
// larger than any cache. It must not overlap another computation on the pool.
func (p *Pool) Limits(s Set, budget time.Duration, readBytes int) (Reached, error) {
	var r Reached
	readBytes = roundUp(readBytes, p.threads<<20)
	memory, err := Allocate(readBytes)
	if err != nil {
		return r, fmt.Errorf("measure the speed of memory: %w", err)
	}
	defer memory.Free()
	start := (*C.uint8_t)(memory.start)
	C.tdm_limit_touch(start, C.size_t(readBytes))
	rounds := C.long(peakRounds)
	if s.Name() == "portable" {
		rounds /= 8
	}
	used, err := cpuTime()
	if err != nil {
		return r, err
	}
	began := time.Now()
	for first := true; first || time.Since(began) < budget; first = false {
		for v := range C.int(C.TDM_PEAK_VARIANTS) {
			r.FLOPsPerSecond = max(r.FLOPsPerSecond, rate(func() C.double {
				return C.tdm_limit_peak(p.c, C.int(p.threads), s.c, v, rounds)
			}))
		}
		for v := range C.int(C.TDM_READ_VARIANTS) {
			read := rate(func() C.double {
				return C.tdm_limit_read(p.c, C.int(p.threads), start, C.size_t(readBytes), v)
			})
			if read > r.ReadBytesPerSecond {
				r.ReadBytesPerSecond, r.ReadVariant = read, int(v)
			}
		}
	}
	took := time.Since(began)
	now, err := cpuTime()
	if err != nil {
		return r, err
	}
	r.CPUShare = (now - used).Seconds() / (took.Seconds() * float64(p.threads))
	return r, nil
}

// Barrier is the time of one barrier of the pool's threads, the mean of rounds of
// them. It must not overlap another computation on the pool. rounds is 1 or more.
func (p *Pool) Barrier(rounds int) (nanoseconds float64) {
	began := time.Now()
	C.tdm_limit_barrier(p.c, C.int(p.threads), C.long(rounds))
	return float64(time.Since(began)) / float64(rounds)
}

// cpuTime is what this process has used of its processors.
func cpuTime() (time.Duration, error) {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return time.Duration(used.Nano()), nil
}

func rate(run func() C.double) float64 {
	began := time.Now()
	done := float64(run())
	return done / time.Since(began).Seconds()
}
