// Package cudatest is a GPU for tests of other packages: the emulated driver that the CUDA
// engine is proved with.
//
// Only tests import it. Its state is one for the process, so tests that use it must not
// run at the same time.
package cudatest

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulation"
)

// illegalAddress is what the driver says of a kernel that read elsewhere.
const illegalAddress = 700

// GPU is an emulated device.
type GPU struct {
	// Driver is the file of the driver's library, for cuda.LoadConfig.Library.
	Driver string
	// CublasLt is the file of a cuBLASLt library for it, for cuda.Config.CublasLt.
	CublasLt string
	control  *emulation.Control
}

// New makes sure that there is one, and takes back what earlier tests did to it. Without a
// C++ compiler the test is skipped: see emulation.Library.
func New(t testing.TB) *GPU {
	t.Helper()
	path := emulation.Library(t)
	return &GPU{path, path, emulation.NewControl(t, path)}
}

// Memory sets how much memory the device has, bytes.
func (g *GPU) Memory(bytes uint64) { g.control.Set(emulation.Memory, bytes) }

// Lose breaks the device until all who opened it have closed it.
func (g *GPU) Lose() { g.control.Lose(illegalAddress) }

// InUse says whether anything of the device is open.
func (g *GPU) InUse() bool { return g.control.Live() != emulation.Live{} }
