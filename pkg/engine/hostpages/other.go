//go:build !linux

package hostpages

import (
	"errors"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// adviseHuge does nothing where there is no such advice.
func adviseHuge([]byte) {}

// populate is not supported here.
func populate([]byte) error { return errors.ErrUnsupported }

// MapShared fails: only Linux has files in memory whose size can be sealed.
func MapShared(kvcache.Layout, int) (*Pages, error) {
	return nil, errors.New("this system has no files in memory that can be sealed")
}

// Collapse does nothing: there are no pages of MapShared.
func (p *Pages) Collapse() {}
