//go:build !linux

package hostpages

import "errors"

// adviseHuge does nothing where there is no such advice.
func adviseHuge([]byte) {}

// populate is not supported here.
func populate([]byte) error { return errors.ErrUnsupported }
