package worker

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Describe adds to a worker's record what it computes with.
func Describe(record *controlv1.WorkerRecord, e engine.Engine, limits Limits) {
	capacity, spec := e.Capacity(), e.Model()
	record.Capacity = &controlv1.Capacity{
		Blocks:         uint32(capacity.Blocks),
		BlockTokens:    uint32(capacity.Layout.BlockTokens),
		ContextTokens:  uint32(spec.ContextTokens),
		MaxBatchTokens: uint32(capacity.MaxBatchTokens),
		MaxSequences:   uint32(scheduler.Places(capacity.MaxSequences, capacity.MaxBatchTokens, capacity.Layout.BlockTokens)),
		MaxWaiting:     uint32(limits.MaxWaiting),
		ChunkTokens:    uint32(limits.ChunkTokens),
		Threads:        uint32(capacity.Threads),
	}
	record.WholeRequests, record.KeepsTpot = true, true
	record.Model, record.ModelDigest = spec.Name, spec.Digest
	record.Layout, record.LayoutDigest = capacity.Layout.Proto(), capacity.Layout.Digest()
}
