package scenario

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// storeRole is the role of pools of block stores.
	storeRole = "store"
	// storeMemory is the default memory of a store.
	storeMemory bytesize.Size = 4 << 30
	// maxStoreTransfers bounds the transfers of a store in each direction.
	maxStoreTransfers = 1 << 16
)

// readStores reads a pool of block stores. Its keys are the flags of live ones without "store-".
func (s *Scenario) readStores(section *section, p *pool, shared *latency.Profile) (*pool, error) {
	w, memory := &p.worker, storeMemory
	w.Role, w.Profile, w.MaxBatchTokens, w.MaxSequences = controlv1.Role_ROLE_KVTRANSFER, shared, 1, 1
	if err := p.readPlaces(section); err != nil {
		return nil, err
	}
	fs := newFlags()
	fs.Var(&memory, "memory", "")
	fs.IntVar(&w.MaxPuts, "max-puts", blockstore.DefaultPuts, "")
	fs.IntVar(&w.MaxFetches, "max-fetches", blockstore.DefaultFetches, "")
	fs.DurationVar(&w.TransferLease, "transfer-lease", kvtransfer.DefaultLease, "")
	fs.IntVar(&w.TransferCreditBytes, "transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "")
	lines := s.doc.lines
	defer func() { s.doc.lines = lines }()
	s.doc.lines = map[string]int{}
	if err := section.flags(fs, nil); err != nil {
		return nil, err
	}
	if err := p.checkTransfers(section); err != nil {
		return nil, err
	}
	for name, n := range map[string]int{"max-puts": w.MaxPuts, "max-fetches": w.MaxFetches} {
		if n < 1 || n > maxStoreTransfers {
			return nil, section.errorf(name, "\"%s%s\" is %d: want 1 to %d", section.name, name, n, maxStoreTransfers)
		}
	}
	spec := s.config.Spec
	layout := kvcache.Layout{Layers: spec.Layers, BlockTokens: s.config.BlockTokens, SliceBytes: simulated.SliceBytes(spec, s.config.BlockTokens)}
	if w.Blocks = blockstore.Blocks(int64(memory), layout); w.Blocks < 1 {
		return nil, section.errorf("memory", "\"%smemory\" is %s: one block of this model takes %d bytes", section.name, memory.String(), blockstore.BlockBytes(layout))
	}
	return p, nil
}
