package kernels

/*
#include "tdm_launch.h"

// Go cannot call what takes arguments and is no function.
static int attention_thin_shared(int head) { return TDM_ATTENTION_THIN_SHARED(head); }
static int attention_tall_shared(int head) { return TDM_ATTENTION_TALL_SHARED(head); }
static int head_of(int size) { return TDM_HEAD(size); }
static int tiled_shared(int rows) { return TDM_TILED_SHARED(rows); }
*/
import "C"

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

//go:embed ptx
var compiled embed.FS

// HeadBlock divides the distance of heads, in elements: heads of other sizes have zeros
// behind them.
const HeadBlock = 16

// Set is the kernels of one device, ready to be launched. It does not change, and is safe
// for concurrent use.
type Set struct {
	device  *driver.Device
	modules []*driver.Module

	embed, norm, heads, join, gather, swiglu, draw kernel
	products                                       [3]products    // by epilogue
	attentionThin, attentionTall                   map[int]kernel // by headOf
}

// kernel is a kernel with the dynamic shared memory of a block, bytes.
type kernel struct {
	*driver.Function
	shared int
}

// HeadSize refuses head sizes that attention has no kernel for.
func HeadSize(size int) error {
	if size <= 0 || size > MostHead {
		return fmt.Errorf("heads of %d elements: the CUDA engine takes up to %d", size, MostHead)
	}
	return nil
}

// Scale is what scores are multiplied with: 1/sqrt(size), rounded once.
func Scale(size int) float32 { return float32(1 / math.Sqrt(float64(size))) }

// SharedBytes is the shared memory of a block that the kernels need for heads of a size.
func SharedBytes(size int) int {
	most := 0
	for _, rows := range tiledRows() {
		most = max(most, int(C.tiled_shared(C.int(rows))))
	}
	head := C.int(headOf(size))
	return max(most, int(C.attention_thin_shared(head)), int(C.attention_tall_shared(head)))
}

// Load hands the kernels that suit a device to the driver, which compiles them for it:
// attention for heads of the given sizes.
func Load(device *driver.Device, sizes ...int) (_ *Set, err error) {
	s := &Set{device: device, attentionThin: map[int]kernel{}, attentionTall: map[int]kernel{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Unload())
		}
	}()
	target := "sm_80"
	if device.Info().Capability >= 90 {
		target = "sm_90"
	}
	functions := map[string]*driver.Module{}
	files, err := fs.Glob(compiled, path.Join("ptx", target, "*.ptx"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		ptx, err := compiled.ReadFile(file)
		if err != nil {
			return nil, err
		}
		module, err := device.Load(ptx)
		if err != nil {
			return nil, fmt.Errorf("kernels %s: %w", path.Base(file), err)
		}
		s.modules = append(s.modules, module)
		for _, name := range entries(ptx) {
			functions[name] = module
		}
	}
	err = s.find(sizes, func(name string, shared int) (*driver.Function, error) {
		module := functions[name]
		if module == nil {
			return nil, fmt.Errorf("kernel %s is not part of this program: make kernels", name)
		}
		f, err := module.Function(name)
		if err != nil {
			return nil, err
		}
		if err := f.AllowShared(shared); err != nil {
			return nil, err
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// find fills s with the kernels.
func (s *Set) find(sizes []int, function func(name string, shared int) (*driver.Function, error)) error {
	var errs []error
	get := func(shared int, format string, args ...any) kernel {
		f, err := function(fmt.Sprintf("tdm_"+format, args...), shared)
		errs = append(errs, err)
		return kernel{f, shared}
	}
	s.embed, s.heads = get(0, "embed"), get(0, "heads")
	s.join, s.gather, s.swiglu = get(0, "join"), get(0, "gather"), get(0, "swiglu")
	s.norm, s.draw = get(C.TDM_NORM_SHARED, "norm"), get(C.TDM_DRAW_SHARED, "draw")
	for i, name := range epilogues() {
		s.products[i] = findProducts(name, get)
	}
	for _, size := range sizes {
		size = headOf(size)
		s.attentionThin[size] = get(int(C.attention_thin_shared(C.int(size))), "attention_thin_%d", size)
		s.attentionTall[size] = get(int(C.attention_tall_shared(C.int(size))), "attention_tall_%d", size)
	}
	return errors.Join(errs...)
}

// headOf is the size of the attention kernels that serve heads of a size.
func headOf(size int) int { return int(C.head_of(C.int(size))) }

// Unload takes the kernels from the driver. Nothing that runs may use them.
func (s *Set) Unload() error {
	var errs []error
	for _, m := range s.modules {
		errs = append(errs, m.Unload())
	}
	s.modules = nil
	return errors.Join(errs...)
}
