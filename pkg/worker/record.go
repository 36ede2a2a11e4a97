package worker

import (
	"os"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Identity is who a worker is.
type Identity struct {
	// ID is unique among all workers.
	ID string
	// Epoch is this incarnation's random number.
	Epoch uint64
	// Role is what it does.
	Role controlv1.Role
	// Addresses are where its gRPC server listens, best first.
	Addresses []string
	// Engine is the engine's name.
	Engine string
	// Version is the binary's.
	Version string
}

// Record is what a worker registers about itself.
func Record(id Identity, e engine.Engine, maxWaiting int) *controlv1.WorkerRecord {
	capacity, spec := e.Capacity(), e.Model()
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return &controlv1.WorkerRecord{
		Id: id.ID, Role: id.Role, Epoch: id.Epoch, Addresses: id.Addresses,
		State: controlv1.WorkerState_WORKER_STATE_SERVING,
		Capacity: &controlv1.Capacity{
			Blocks:         uint32(capacity.Blocks),
			BlockTokens:    uint32(capacity.Layout.BlockTokens),
			ContextTokens:  uint32(spec.ContextTokens),
			MaxBatchTokens: uint32(capacity.MaxBatchTokens),
			MaxSequences:   uint32(capacity.MaxSequences),
			MaxWaiting:     uint32(maxWaiting),
			Threads:        uint32(capacity.Threads),
		},
		Model: spec.Name, ModelDigest: spec.Digest,
		Layout: layoutMessage(capacity.Layout), LayoutDigest: capacity.Layout.Digest(),
		Engine: id.Engine, Version: id.Version, Host: host,
	}
}

func layoutMessage(l kvcache.Layout) *kvtransferv1.Layout {
	return &kvtransferv1.Layout{
		ModelDigest: l.ModelDigest, ArithmeticClass: l.ArithmeticClass,
		Layers: uint32(l.Layers), KvHeads: uint32(l.KVHeads), HeadSize: uint32(l.HeadSize),
		ElementType: l.ElementType, BlockTokens: uint32(l.BlockTokens), Order: l.Order, SliceBytes: uint32(l.SliceBytes),
	}
}
