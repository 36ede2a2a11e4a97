//go:build !linux

package store

// adviseHuge does nothing where there is no such advice.
func adviseHuge([]byte) {}
