package mesh

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/services/kvtransfer"
)

// maxSimulatedBlockTokens and maxSimulatedBlocks bound the blocks of the simulated
// engine.
const (
	maxSimulatedBlockTokens = 1024
	maxSimulatedBlocks      = 1 << 22
)

// blockTokens are the block sizes that engines' kernels take.
func blockTokens() []int { return []int{16, 32, 64, 128, 256} }

// checkBlocks checks the size of a block against the engine.
func (e *EngineOptions) checkBlocks() error {
	switch {
	case e.Name != EngineSimulated && !slices.Contains(blockTokens(), e.BlockTokens):
		return fmt.Errorf("--block-tokens: the engine has no blocks of %d tokens: use 16, 32, 64, 128 or 256", e.BlockTokens)
	case e.BlockTokens <= 0 || e.BlockTokens > maxSimulatedBlockTokens:
		return fmt.Errorf("--block-tokens: %d is outside 1 to %d", e.BlockTokens, maxSimulatedBlockTokens)
	}
	return nil
}

// checkCredit checks that a chunk, which holds a slice of sliceBytes at least, can
// be sent at all.
func (o *Options) checkCredit(sliceBytes int) error {
	if chunk := max(kvtransfer.DefaultMaxChunkBytes, sliceBytes); o.Decode.TransferCreditBytes < chunk {
		return fmt.Errorf("--decode-transfer-credit-bytes: %d is less than one chunk of %d bytes", o.Decode.TransferCreditBytes, chunk)
	}
	return nil
}

// autoKVMemory is what KVMemory Auto stands for where there is enough memory and a
// full context does not take more.
const autoKVMemory ByteSize = 1 << 30

// checkModel checks what depends on the model's shape, and says what Auto stands
// for. It is called before the weights are read, which may take minutes; workers is
// how many share them. left is what memory there is, where that is known. The
// simulated engine has the same number of blocks, of fewer bytes. A warning is
// about what may come, not about what is wrong.
func (o *Options) checkModel(spec model.Spec, workers int, left memory.Left, known bool) (warning string, err error) {
	e := &o.Engine
	if e.Name == EngineCUDA {
		return "", o.checkGPU(spec, workers)
	}
	sliceBytes := cpu.SliceBytes(spec, e.cpuConfig())
	if e.Name == EngineCPU || e.SimulatedDevice.RealPages {
		if err := o.checkCredit(sliceBytes); err != nil {
			return "", err
		}
	}
	if e.Name != EngineCPU || !known {
		left = memory.Left{Bytes: math.MaxInt64 / 2}
	}
	r := newRoom(spec, *e, workers, left)
	if err := r.checkWeights(); err != nil {
		return "", err
	}
	if e.KVMemory == Auto {
		e.KVMemory, warning = r.auto(e.BlockTokens)
		return warning, nil
	}
	if int64(e.KVMemory) < r.block {
		return "", fmt.Errorf("--kv-memory: %s does not hold one block of %d tokens, which takes %d bytes: pass more, or smaller --block-tokens",
			e.KVMemory.String(), e.BlockTokens, r.block)
	}
	if need := ByteSize(r.full); e.KVMemory < need {
		holds := r.contextOf(int64(e.KVMemory), e.BlockTokens)
		return "", fmt.Errorf("--kv-memory: %s holds %d tokens, but a sequence of %s may have %d, which take %s: pass %s or more, or --context-tokens %d; pages that are never used cost nothing",
			e.KVMemory.String(), holds, spec.Name, spec.ContextTokens, need.String(), need.String(), holds)
	}
	return "", r.checkKV(e.KVMemory, e.BlockTokens)
}
