package kernels

/*
#include "tdm_launch.h"
*/
import "C"

import "github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"

// Weights is what the weights of a product are kept as.
type Weights string

// The types of weights: two bytes an element, or one and a scale for each output.
const (
	BF16 Weights = "bf16"
	Int8 Weights = "int8"
	FP8  Weights = "fp8" // e4m3
)

// Bytes is the size of an element.
func (w Weights) Bytes() int {
	if w == BF16 {
		return 2
	}
	return 1
}

// suffix is what the names of the products' kernels end in.
func (w Weights) suffix() string {
	if w == BF16 {
		return ""
	}
	return "_" + string(w)
}

// Quantize appends the making of rows of weights of 8 bits.
func (s *Set) Quantize(p *driver.Program, weights Weights, rows int, args QuantizeArgs) {
	launch(p, s.quantize[weights], rows, 1, threadsRow, args)
}
