//go:build !linux

package processor

import (
	"errors"
	"time"
)

// Cores is unknown.
func Cores() []int { return nil }

// On calls start, or fails if cores are given.
func On(cores []int, start func() error) error {
	if cores != nil {
		return errors.New("processes can be bound to cores only on Linux")
	}
	return start()
}

// CPUSeconds is unknown.
func CPUSeconds(int) (float64, error) {
	return 0, errors.New("the CPU time of a process is known only on Linux")
}

// Busy is unknown.
func Busy([]int) (float64, bool) { return 0, false }

// ThreadTime is unknown.
func ThreadTime() (time.Duration, bool) { return 0, false }
