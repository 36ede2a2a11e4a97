//go:build !linux

package hostpages

import "errors"

// adviseHuge does nothing where there is no such advice.
func adviseHuge([]byte) {}

// populate does not work there.
func populate([]byte) error { return errors.ErrUnsupported }

// yields does nothing.
func yields() {}
