package cuda

import (
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// WeightType is what the matrices of a model's layers are kept as in device memory.
// Embeddings and norms stay what they are with BF16.
type WeightType string

// The weight types. With BF16 weights are the checkpoint's, f16 and f32 rounded. Of the
// others a weight takes one byte, and an output has one scale
// (docs/decisions/0017-cuda-eight-bits.md): Int8 is whole numbers, of the output head as
// well; FP8 is e4m3, with the head in bf16.
const (
	BF16 WeightType = "bf16"
	Int8 WeightType = "int8"
	FP8  WeightType = "fp8"
)

// WeightTypes are all weight types, BF16 first.
func WeightTypes() []WeightType { return []WeightType{BF16, Int8, FP8} }

// layers is what the kernels know the type of the layers' matrices as.
func (t WeightType) layers() kernels.Weights { return kernels.Weights(t) }

// head is the same of the output head.
func (t WeightType) head() kernels.Weights {
	if t == FP8 {
		return kernels.BF16
	}
	return kernels.Weights(t)
}

// used are the types that products have with t.
func (t WeightType) used() []kernels.Weights {
	return slices.Compact([]kernels.Weights{t.layers(), t.head()})
}

// Validate refuses what is none of WeightTypes. "" is none.
func (t WeightType) Validate() error {
	if !slices.Contains(WeightTypes(), t) {
		return fmt.Errorf("%q is not a weight type of the CUDA engine: use one of %v", string(t), WeightTypes())
	}
	return nil
}

// KVType is what keys and values are kept as in pages.
type KVType string

// The types of keys and values. KVFP8 is e4m3, a byte each, with a power of two for each
// token of a head: half the bytes of KVBF16, and numbers that are rounded to four bits.
const (
	KVBF16 KVType = "bf16"
	KVFP8  KVType = "fp8"
)

// KVTypes are all types of keys and values, KVBF16 first.
func KVTypes() []KVType { return []KVType{KVBF16, KVFP8} }

// Validate refuses what is none of KVTypes. "" is none.
func (t KVType) Validate() error {
	if !slices.Contains(KVTypes(), t) {
		return fmt.Errorf("%q is not a KV type of the CUDA engine: use one of %v", string(t), KVTypes())
	}
	return nil
}

// kernels is t as the kernels know it.
func (t KVType) kernels() kernels.KV { return kernels.KV(t) }

// order names the order of what a slice of a page has.
func (t KVType) order() string {
	if t == KVFP8 {
		return orderFP8
	}
	return orderBF16
}

// ArithmeticClass names the bits that an engine computes: the types, what computes
// products of many rows, and a version, which any change of the bits changes. With Own a
// row's results depend on nothing but the row. With CublasLt they are the same numbers up
// to rounding, which may differ with the batch, the chunks of a prompt, and the version of
// cuBLASLt.
func ArithmeticClass(weights WeightType, kv KVType, products Products) string {
	const version, fastVersion = "2", "fast-2"
	if products == CublasLt {
		return fmt.Sprintf("cuda/%s/%s/%s", weights, kv, fastVersion)
	}
	return fmt.Sprintf("cuda/%s/%s/%s", weights, kv, version)
}
