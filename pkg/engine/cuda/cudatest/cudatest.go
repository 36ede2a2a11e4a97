// Package cudatest gives the tests of other packages a CUDA driver that needs no GPU.
//
// Only tests import it. The driver's state is one for the process, so tests that use it
// must not run at the same time.
package cudatest

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulation"
)

// Library is the path of an emulated driver, to be named where a driver's library can be.
// Without a C++ compiler the test is skipped.
func Library(t testing.TB) string {
	t.Helper()
	return emulation.Library(t)
}
