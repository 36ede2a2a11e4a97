//go:build !unix

package drive

// processCPUSeconds is 0 where the system does not say.
func processCPUSeconds() float64 { return 0 }
