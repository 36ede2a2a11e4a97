//go:build !unix

package drive

// processCPUSeconds is unknown on this system.
func processCPUSeconds() float64 { return 0 }
