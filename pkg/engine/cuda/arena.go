package cuda

import "github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"

// alignment of every part of an arena, bytes: what the widest copies want, and a line
// of the cache.
const alignment = 256

// arena hands out parts of one piece of device memory. With a base of 0 it measures:
// what is laid twice, first measured, is planned before it is allocated.
type arena struct {
	base driver.Address
	used int64
}

// take is a part of so many bytes.
func (a *arena) take(bytes int64) driver.Address {
	at := a.base + driver.Address(a.used)
	a.used += (bytes + alignment - 1) / alignment * alignment
	return at
}

// padded is n rounded up to a multiple.
func padded(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }
