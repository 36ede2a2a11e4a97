package cpu

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
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
	// Int4 is four bits a weight and a scale for every 32, the output matrix and the
	// activations in int8: a little over a quarter of the memory of bf16, and more of
	// its quality lost.
	Int4 WeightType = "int4"
)

// Validate refuses what is no type; the error says which there are.
func (t WeightType) Validate() error {
	if t != BF16 && t != Int8 && t != Int4 {
		return fmt.Errorf("%q is not a weight type: use %s, %s or %s", string(t), BF16, Int8, Int4)
	}
	return nil
}

// KVType is the type of keys and values in an engine's pages.
type KVType string

// What keys and values can be.
const (
	// KVBF16 is what they are computed in.
	KVBF16 KVType = "bf16"
	// KVInt8 is one byte an element and a bf16 scale for each token of a head: little
	// more than half the memory, and of the reading behind a long context. What it costs
	// in quality is in docs/benchmarks.md.
	KVInt8 KVType = "int8"
)

// Validate refuses what is no type; the error says which there are.
func (t KVType) Validate() error {
	if t != KVBF16 && t != KVInt8 {
		return fmt.Errorf("%q is not a type of keys and values: use %s or %s", string(t), KVBF16, KVInt8)
	}
	return nil
}

// format is how they are kept, and order names that for others.
func (t KVType) format() kernels.Format {
	if t == KVInt8 {
		return kernels.Int8
	}
	return kernels.Pairs
}

func (t KVType) order() string {
	if t == KVInt8 {
		return OrderInt8
	}
	return Order
}

// ArithmeticClass names the bits that an engine computes with such weights, and keys and
// values of type kv: both types, and a version. Any change of the bits changes it.
func (t WeightType) ArithmeticClass(kv KVType) string {
	return "cpu/" + string(t) + "/" + string(kv) + "/1"
}

// BytesPerWeight is what an engine reads for each weight, its share of a scale included.
func (t WeightType) BytesPerWeight() engine.BytesPerWeight {
	layers, head := t.formats()
	return engine.BytesPerWeight{Layers: layers.BytesPerWeight(), Head: head.BytesPerWeight()}
}

// formats are how the matrices of layers and the output matrix are packed.
func (t WeightType) formats() (layers, head kernels.Format) {
	switch t {
	case Int8:
		return kernels.Int8, kernels.Int8
	case Int4:
		return kernels.Int4, kernels.Int8
	}
	return kernels.Pairs, kernels.Pairs
}

// InstructionSets are the names of those that this processor has kernels for, the best one, which
// Load takes by itself, first: see Config.ISA.
func InstructionSets() []string {
	var names []string
	for _, set := range kernels.Usable() {
		names = append(names, set.Name())
	}
	return names
}
