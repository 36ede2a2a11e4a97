package mesh

import (
	"fmt"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// room is what a model needs of the process's memory, and what there is.
type room struct {
	spec model.Spec
	// weights are shared; each of the workers computes in workspace and has KV
	// pages of its own. Bytes.
	weights, workspace int64
	workers            int64
	// block is one KV block, full the blocks of a full context.
	block, full int64
	left        memory.Left
	// remedy is what else than more memory may help where the weights do not fit.
	remedy string
	// fullInt8 is what a full context takes with --cpu-kv int8; 0 where that is asked
	// for already.
	fullInt8 int64
}

// restBytes is what a process takes beside weights, workspaces and KV pages: Go's
// heap, stacks, buffers of connections, the embedded servers. `up` was seen to have
// 120 to 150 MiB when idle and 185 MiB with six clients whose prompts filled all KV
// pages.
const restBytes = 192 << 20

// leastRestBytes is the least of that, of a worker that has just started.
const leastRestBytes = 64 << 20

// newRoom adds up what workers of the CPU engine need.
func newRoom(spec model.Spec, e EngineOptions, workers int, left memory.Left) room {
	config := e.cpuConfig()
	config.Threads = e.Threads
	block := int64(cpu.SliceBytes(spec, config)) * int64(spec.Layers)
	blocks := (int64(spec.ContextTokens) + int64(e.BlockTokens) - 1) / int64(e.BlockTokens)
	r := room{
		remedy: "use a smaller model",
		spec:   spec, workers: int64(workers), block: block, full: blocks * block, left: left,
		weights:   cpu.WeightBytes(spec, e.CPUWeights),
		workspace: cpu.WorkspaceBytes(spec, e.CPUWeights, config),
	}
	if e.CPUKV == cpu.KVBF16 {
		config.KV = cpu.KVInt8
		r.fullInt8 = blocks * int64(cpu.SliceBytes(spec, config)) * int64(spec.Layers)
		config.KV = e.CPUKV
	}
	for _, smaller := range []cpu.WeightType{cpu.Int8, cpu.Int4} {
		s := r
		s.weights, s.workspace = cpu.WeightBytes(spec, smaller), cpu.WorkspaceBytes(spec, smaller, config)
		if s.weights < r.weights && s.checkWeights() == nil {
			r.remedy = fmt.Sprintf("pass --cpu-weights %s, or use a smaller model", smaller)
			break
		}
	}
	return r
}

// fixed is what is needed whatever is asked for.
func (r room) fixed() int64 { return r.weights + r.workers*r.workspace }

// perWorker is what is left for the KV pages of each worker; 0 or less: nothing.
func (r room) perWorker() int64 { return (r.left.Bytes - r.fixed() - restBytes) / r.workers }

// contextOf is how long a context fits in so many bytes, tokens.
func (r room) contextOf(bytes int64, blockTokens int) int64 {
	return max(bytes, 0) / r.block * int64(blockTokens)
}

// checkWeights refuses a model that does not fit even without any KV pages.
func (r room) checkWeights() error {
	if r.fixed()+leastRestBytes <= r.left.Bytes {
		return nil
	}
	return fmt.Errorf("%s does not fit: its weights take %s, computing %s and the rest of the process %s at least, but it may take %s (%s): "+
		"give it more memory, or %s; a model cannot be divided among several machines",
		r.spec.Name, gib(r.weights), gib(r.workers*r.workspace), gib(leastRestBytes), gib(r.left.Bytes), r.left.By, r.remedy)
}

// checkKV refuses KV memory that was asked for and is not there. Pages take memory
// only when they are used, but a worker that is busy uses all.
func (r room) checkKV(kv ByteSize, blockTokens int) error {
	total := r.fixed() + restBytes + r.workers*int64(kv)
	if total <= r.left.Bytes {
		return nil
	}
	remedy := fmt.Sprintf("pass %s or less", gib(r.perWorker()))
	switch tokens := r.contextOf(r.perWorker(), blockTokens); {
	case tokens == 0:
		remedy = "no context fits: use fewer workers or a smaller model, or give it more memory"
	case r.perWorker() < r.full:
		remedy = r.orInt8(fmt.Sprintf("shorten the context to %d or less with --context-tokens and pass less, or use fewer workers, or a smaller model", tokens))
	}
	return fmt.Errorf("--kv-memory: %s for each of %d workers, %s of weights, %s to compute in and %s for the rest of the process make %s, but it may take %s (%s): %s",
		kv.String(), r.workers, gib(r.weights), gib(r.workers*r.workspace), gib(restBytes), gib(total), gib(r.left.Bytes), r.left.By, remedy)
}

// auto is the KV memory of each worker where none was asked for: autoKVMemory, or a
// full context if that is more; less than autoKVMemory where that is not there. The
// warning says that not even full contexts may fit: short ones do all the same,
// since pages that are never used cost nothing.
func (r room) auto(blockTokens int) (kv ByteSize, warning string) {
	kv = autoKVMemory
	// Half of what is left: other processes want some too.
	if fits := ByteSize(r.perWorker() / 2 / r.block * r.block); fits < kv {
		kv = fits
	}
	kv = max(kv, ByteSize(r.full))
	if int64(kv) <= r.perWorker() {
		return kv, ""
	}
	remedy := "no shorter context fits either"
	if tokens := r.contextOf(r.perWorker(), blockTokens); tokens > 0 {
		remedy = r.orInt8(fmt.Sprintf("--context-tokens %d would fit", tokens))
	}
	return kv, fmt.Sprintf("this process may take %s (%s), weights take %s, computing %s, the rest of it %s, and a full context of %d tokens %s in each of %d workers; %s",
		gib(r.left.Bytes), r.left.By, gib(r.weights), gib(r.workers*r.workspace), gib(restBytes), r.spec.ContextTokens, gib(r.full), r.workers, remedy)
}

// orInt8 puts KV in int8 before another remedy, where full contexts fit with it.
func (r room) orInt8(remedy string) string {
	if r.fullInt8 == 0 || r.fullInt8 > r.perWorker() {
		return remedy
	}
	return fmt.Sprintf("pass --cpu-kv int8, with which it takes %s, or %s", gib(r.fullInt8), remedy)
}

// gib writes bytes for people.
func gib(bytes int64) string {
	bytes = max(bytes, 0)
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%dKiB", bytes>>10)
	case bytes < 1<<30:
		return fmt.Sprintf("%.1fMiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1fGiB", float64(bytes)/(1<<30))
}

// checkContext refuses a limit that is none: nobody gets more context by it.
func (o *Options) checkContext(spec model.Spec) error {
	if o.ContextTokens > spec.ContextTokens {
		return fmt.Errorf("--context-tokens: %d is more than the %d that %s has: pass less, or leave it out", o.ContextTokens, spec.ContextTokens, spec.Name)
	}
	return nil
}
