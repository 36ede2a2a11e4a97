//go:build !linux

package processor

import (
	"errors"
	"time"
)

// Cores are not known.
func Cores() []int { return nil }

// On calls start, or fails if it should be bound to cores.
func On(cores []int, start func() error) error {
	if cores != nil {
		return errors.New("processes can be bound to cores only on Linux")
	}
	return start()
}

// CPUSeconds is not known.
func CPUSeconds(int) (float64, error) {
	return 0, errors.New("the CPU time of a process is known only on Linux")
}

// Busy is not known.
func Busy([]int) (float64, bool) { return 0, false }

// ThreadTime is not known.
func ThreadTime() (time.Duration, bool) { return 0, false }
