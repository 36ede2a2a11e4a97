//go:build !linux

package transfer

// adviseHuge does nothing: huge pages are asked for only on Linux.
func adviseHuge([]byte) {}
