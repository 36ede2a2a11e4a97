package engines

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
)

// hostSizing is what a model needs of the process's memory, and what there is.
type hostSizing struct {
	need
	spec    model.Spec
	workers int64
	// kvWorkers are those of them whose KV pages count.
	kvWorkers int64
	free      memory.Left
	// remedy is what else than more memory may help where the weights do not fit.
	remedy string
	// fullInt8 is what a full context takes with --cpu-kv int8; 0 where that is asked
	// for already.
	fullInt8 int64
}

// newHostSizing adds up what workers of the CPU engine need.
func newHostSizing(spec model.Spec, c Config, workers int, free memory.Left) hostSizing {
	config := c.sized().CPU
	needOf := func(config cpu.Config) need {
		return newNeed(spec, c.BlockTokens, cpu.WeightBytes(spec, config.Weights), cpu.WorkspaceBytes(spec, config), cpu.SliceBytes(spec, config))
	}
	r := hostSizing{need: needOf(config), remedy: "use a smaller model", spec: spec, workers: int64(workers), kvWorkers: int64(workers), free: free}
	if config.KV == cpu.KVBF16 {
		other := config
		other.KV = cpu.KVInt8
		r.fullInt8 = needOf(other).full
	}
	for _, smaller := range []cpu.WeightType{cpu.Int8, cpu.Int4} {
		config.Weights = smaller
		s := r
		s.need = needOf(config)
		if s.weights < r.weights && s.checkWeights() == nil {
			r.remedy = fmt.Sprintf("pass --cpu-weights %s, or use a smaller model", smaller)
			break
		}
	}
	return r
}

// fixed is what is needed whatever is asked for.
func (r hostSizing) fixed() int64 { return r.weights + r.workers*r.workspace }

// perWorker is what is left for the KV pages of each of kvWorkers; 0 or less: nothing.
func (r hostSizing) perWorker() int64 {
	return (r.free.Bytes - memory.ProcessBytes - r.fixed()) / r.kvWorkers
}

// contextOf is how long a context fits in so many bytes, tokens.
func (r hostSizing) contextOf(bytes int64, blockTokens int) int64 {
	return max(bytes, 0) / r.block * int64(blockTokens)
}

// checkWeights refuses a model that does not fit even without any KV pages.
func (r hostSizing) checkWeights() error {
	if r.fixed()+memory.IdleProcessBytes <= r.free.Bytes {
		return nil
	}
	return fmt.Errorf("%s does not fit: its weights take %s, computing %s and the rest of the process at least %s, but the process may use only %s (%s): "+
		"give it more memory, or %s; a model cannot be split across machines",
		r.spec.Name, bytesize.Text(r.weights), bytesize.Text(r.workers*r.workspace), bytesize.Text(memory.IdleProcessBytes), bytesize.Text(r.free.Bytes), r.free.By, r.remedy)
}

// checkKV refuses KV memory that was asked for and is not there. Pages take memory
// only when they are used, but a worker that is busy uses all.
func (r hostSizing) checkKV(kv bytesize.Size, blockTokens int) error {
	total := r.fixed() + memory.ProcessBytes + r.workers*int64(kv)
	if total <= r.free.Bytes {
		return nil
	}
	remedy := fmt.Sprintf("pass %s or less", bytesize.Text(r.perWorker()))
	switch tokens := r.contextOf(r.perWorker(), blockTokens); {
	case tokens == 0:
		remedy = "no context fits: use fewer workers or a smaller model, or give it more memory"
	case r.perWorker() < r.full:
		remedy = r.orInt8(fmt.Sprintf("shorten the context to %d or less with --context-tokens and pass less, or use fewer workers or a smaller model", tokens))
	}
	return fmt.Errorf("--kv-memory: %s for each of %d workers, %s for weights, %s for computing and %s for the rest of the process add up to %s, but the process may use only %s (%s): %s",
		kv.String(), r.workers, bytesize.Text(r.weights), bytesize.Text(r.workers*r.workspace), bytesize.Text(memory.ProcessBytes), bytesize.Text(total), bytesize.Text(r.free.Bytes), r.free.By, remedy)
}

// auto is the KV memory of each worker where none was asked for: autoKVMemory, or a
// full context if that is more; less than autoKVMemory where that is not there. The
// warning says that not even full contexts may fit: short ones do all the same,
// since pages that are never used cost nothing.
func (r hostSizing) auto(blockTokens int) (kv bytesize.Size, warning string) {
	kv = autoKVMemory
	// Half of what is left: other processes want some too.
	if fits := bytesize.Size(r.perWorker() / 2 / r.block * r.block); fits < kv {
		kv = fits
	}
	kv = max(kv, bytesize.Size(r.full))
	return kv, r.short(kv, blockTokens)
}

// short says that what is left does not hold such KV memory of each of kvWorkers; empty: it does.
func (r hostSizing) short(kv bytesize.Size, blockTokens int) string {
	if int64(kv) <= r.perWorker() {
		return ""
	}
	remedy := "no shorter context fits either"
	if tokens := r.contextOf(r.perWorker(), blockTokens); tokens > 0 {
		remedy = r.orInt8(fmt.Sprintf("--context-tokens %d would fit", tokens))
	}
	return fmt.Sprintf("this process may use %s (%s), but weights take %s, computing %s, the rest of the process %s, and a full context of %d tokens %s in each of %d workers; %s",
		bytesize.Text(r.free.Bytes), r.free.By, bytesize.Text(r.weights), bytesize.Text(r.workers*r.workspace), bytesize.Text(memory.ProcessBytes), r.spec.ContextTokens, bytesize.Text(r.full), r.kvWorkers, remedy)
}

// orInt8 puts KV in int8 before another remedy, where full contexts fit with it.
func (r hostSizing) orInt8(remedy string) string {
	if r.fullInt8 == 0 || r.fullInt8 > r.perWorker() {
		return remedy
	}
	return fmt.Sprintf("pass --cpu-kv int8, which reduces it to %s, or %s", bytesize.Text(r.fullInt8), remedy)
}
