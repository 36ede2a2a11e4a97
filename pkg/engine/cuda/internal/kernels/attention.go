package kernels

/*
#include "tdm_launch.h"

// Go cannot call what takes arguments and is no function.
static int attention_thin_shared(int head, int fp8) { return TDM_ATTENTION_THIN_SHARED(head, fp8); }
static int attention_tall_shared(int head, int fp8) { return TDM_ATTENTION_TALL_SHARED(head, fp8); }
static int head_of(int size) { return TDM_HEAD(size); }
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// KV is what keys and values are kept as in pages.
type KV string

// The kinds of keys and values: see tdm_cuda.h for how they are in a slice.
const (
	KVBF16 KV = "bf16"
	KVFP8  KV = "fp8"
)

// FP8 is 1 for KVFP8 and else 0, as the kernels want it.
func (k KV) FP8() int32 {
	if k == KVFP8 {
		return 1
	}
	return 0
}

// suffix is what the names of attention's kernels end in.
func (k KV) suffix() string {
	if k == KVFP8 {
		return "_fp8"
	}
	return ""
}

// SliceBytes is what a slice takes: one layer of a block of so many tokens, of KV heads
// that are stride elements apart, a multiple of HeadBlock. It is a multiple of 16.
func (k KV) SliceBytes(kvHeads, blockTokens, stride int) int {
	if k == KVFP8 {
		return 2 * kvHeads * blockTokens * (stride + 1) // codes and a scale
	}
	return 2 * kvHeads * blockTokens * 2 * stride
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

// headOf is the size of the attention kernels that serve heads of a size.
func headOf(size int) int { return int(C.head_of(C.int(size))) }

// attentionShared is the shared memory of a block that attention needs for heads of a
// size, whatever keys and values are kept as.
func attentionShared(size int) int {
	most, head := 0, C.int(headOf(size))
	for _, kv := range []KV{KVBF16, KVFP8} {
		most = max(most, int(C.attention_thin_shared(head, C.int(kv.FP8()))), int(C.attention_tall_shared(head, C.int(kv.FP8()))))
	}
	return most
}

// Attention is the kernels of attention for heads of one size and one kind of keys and
// values. It does not change, and is safe for concurrent use.
type Attention struct {
	device     *driver.Device
	modules    []*driver.Module
	thin, tall kernel
}

// LoadAttention hands the kernels for heads of a size to the driver, and no others.
func LoadAttention(device *driver.Device, kv KV, size int) (_ *Attention, err error) {
	a, head, fp8 := &Attention{device: device}, headOf(size), C.int(kv.FP8())
	a.modules, err = load(device, func(get getter) {
		a.thin = get(int(C.attention_thin_shared(C.int(head), fp8)), "attention_thin_%d%s", head, kv.suffix())
		a.tall = get(int(C.attention_tall_shared(C.int(head), fp8)), "attention_tall_%d%s", head, kv.suffix())
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Thin appends attention of items of few rows, over so many blocks for each KV head.
func (a *Attention) Thin(p *driver.Program, blocks int, args AttentionArgs) {
	launch(p, a.thin, blocks, int(args.KVHeads), threadsAttention, args)
}

// Tall is Thin for items of more rows.
func (a *Attention) Tall(p *driver.Program, blocks int, args AttentionArgs) {
	launch(p, a.tall, blocks, int(args.KVHeads), threadsTall, args)
}

// Blocks is how many blocks of each kernel, for each KV head, keep the device busy: as many
// as it runs at a time, and none more, which would begin when others have ended.
func (a *Attention) Blocks(kvHeads int) (thin, tall int, err error) {
	of := func(k kernel, threads int) (int, error) {
		each, err := k.BlocksPerMultiprocessor(threads, k.shared)
		return max(each*a.device.Info().Multiprocessors/kvHeads, 1), err
	}
	if thin, err = of(a.thin, threadsAttention); err != nil {
		return 0, 0, err
	}
	if tall, err = of(a.tall, threadsTall); err != nil {
		return 0, 0, err
	}
	return thin, tall, nil
}

// Unload takes the kernels from the driver. Nothing that runs may use them.
func (a *Attention) Unload() error {
	err := unload(a.modules)
	a.modules = nil
	return err
}
