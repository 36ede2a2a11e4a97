package kernels

/*
#include "tdm_launch.h"
*/
import "C"

import "github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"

// HeadBlock divides the distance of heads, in elements: heads of other sizes have zeros
// behind them.
const HeadBlock = 16

// Set is the kernels of one device, ready to be launched. It does not change, and is safe
// for concurrent use.
type Set struct {
	device  *driver.Device
	modules []*driver.Module

	embed, norm, roots, heads, join, gather, swiglu, draw kernel
	arrange                                               kernel // no function: the device has no wide products

	products map[Weights]*typed
	quantize map[Weights]kernel // for the types of 8 bits
}

// kernel is a kernel with the dynamic shared memory of a block, bytes.
type kernel struct {
	*driver.Function
	shared int
}

// SharedBytes is the shared memory of a block that the kernels need for heads of a size, on
// any device: the wide products, which need more, are only for one that has it.
func SharedBytes(size int) int {
	return max(C.TDM_TILED_SHARED, thinShared(), attentionShared(size))
}

// Load hands the kernels that suit a device to the driver, which compiles them for it, and
// only the files that have some of those: products with weights of the given types.
// LoadAttention loads the rest.
func Load(device *driver.Device, weights ...Weights) (_ *Set, err error) {
	s := &Set{device: device, products: map[Weights]*typed{}, quantize: map[Weights]kernel{}}
	s.modules, err = load(device, func(get getter) { s.find(weights, get) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// find fills s with the kernels.
func (s *Set) find(weights []Weights, get getter) {
	s.embed, s.heads = get(0, "embed"), get(0, "heads")
	s.join, s.gather, s.swiglu = get(0, "join"), get(0, "gather"), get(0, "swiglu")
	s.roots = get(0, "roots")
	s.norm, s.draw = get(C.TDM_NORM_SHARED, "norm"), get(C.TDM_DRAW_SHARED, "draw")
	if hasWide(s.device.Info()) {
		s.arrange = get(0, "arrange")
	}
	for _, w := range weights {
		of := &typed{heads: findThin("heads", w.suffix(), get)}
		for i, name := range epilogues() {
			of.by[i] = findProducts(name, w, get)
			if w == BF16 && hasWide(s.device.Info()) {
				of.by[i].wide = findWide(name, get)
			}
		}
		s.products[w] = of
		if w != BF16 {
			s.quantize[w] = get(C.TDM_QUANTIZE_SHARED, "quantize_%s", w)
		}
	}
}

// Unload takes the kernels from the driver. Nothing that runs may use them.
func (s *Set) Unload() error {
	err := unload(s.modules)
	s.modules = nil
	return err
}
