package engines

import (
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/model"
)

// SmallerTypes are flags, and what weights and a KV block take with them, in bytes.
type SmallerTypes struct {
	Flags          string
	Weights, Block int64
}

// GPUKVMemory is the KV memory of one worker of a model with a context of 100 blocks of 16
// tokens, whose weights take 1000 bytes and a block 10, on a GPU where it may take budget.
func GPUKVMemory(budget int64, asked bytesize.Size, smaller ...SmallerTypes) (bytesize.Size, error) {
	const blocks = 100
	r := gpuSizing{
		need: need{weights: 1000, block: 10, full: 10 * blocks},
		spec: model.Spec{Name: "m", ContextTokens: 16 * blocks}, workers: 1, blockTokens: 16, budget: budget, free: 10 * budget, insteadOfGPU: "--device cpu",
	}
	for _, s := range smaller {
		r.smaller = append(r.smaller, smallerNeed{s.Flags, need{weights: s.Weights, block: s.Block, full: s.Block * blocks}})
	}
	return r.kvMemory(asked)
}

// GPUTypes are the flags of smaller types that a GPU's memory is planned with.
func GPUTypes(spec model.Spec, c Config) (flags []string) {
	for _, s := range newGPUSizing(spec, c, 1, 1<<40).smaller {
		flags = append(flags, s.flags)
	}
	return flags
}
