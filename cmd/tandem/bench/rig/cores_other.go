//go:build !linux

package rig

import "errors"

// onCores can bind nothing to cores here.
func onCores(cores []int, start func() error) error {
	if cores != nil {
		return errors.New("processes can be bound to cores only on Linux")
	}
	return start()
}

func cpuSeconds(int) (float64, error) {
	return 0, errors.New("the CPU time of another process is known only on Linux")
}
