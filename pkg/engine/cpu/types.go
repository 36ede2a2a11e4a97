package cpu

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// WeightType is the type of a model's matrices in memory, which says how they are
// multiplied.
type WeightType string

// What weights can be.
const (
	// BF16 is what checkpoints have: nothing is lost.
	BF16 WeightType = "bf16"
	// Int8 is one byte a weight and a scale for every 128, and activations likewise
	// where they are multiplied: half the memory, and about twice the tokens a second in
	// decode. What it costs in quality is in docs/benchmarks.md.
	Int8 WeightType = "int8"
)

// Validate refuses what is no type; the error says which there are.
func (t WeightType) Validate() error {
	if t != BF16 && t != Int8 {
		return fmt.Errorf("%q is no type of weights: use %s or %s", string(t), BF16, Int8)
	}
	return nil
}

// ArithmeticClass names the bits that an engine with such weights computes: types of
// weights and KV, and a version. Any change of the bits changes it.
func (t WeightType) ArithmeticClass() string { return "cpu/" + string(t) + "/bf16/1" }

// BytesPerWeight is what an engine reads for each weight of a linear layer, its share
// of a scale included.
func (t WeightType) BytesPerWeight() float64 {
	if t == Int8 {
		return 1 + 4.0/kernels.Group
	}
	return 2
}
