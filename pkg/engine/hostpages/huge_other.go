//go:build !linux

package hostpages

// adviseHuge does nothing where there is no such advice.
func adviseHuge([]byte) {}
