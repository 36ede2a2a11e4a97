package workerdriver

import (
	"cmp"
	"context"
	"errors"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// LimitSaves says how many prefixes may be saved elsewhere at a time: 0 where
// nobody takes them. It does nothing without Config.Save.
func (d *Driver) LimitSaves(limit scheduler.SaveLimit) {
	if d.cfg.Save != nil && d.cfg.StopSave != nil {
		d.handle(limit)
	}
}

// SaveDone ends a save: its blocks are not read any more.
func (d *Driver) SaveDone(done scheduler.SaveDone) { d.handle(done) }

// errUnreadable is of KV that the engine cannot read.
var errUnreadable = errors.New("the kv blocks cannot be read: the engine is closed, or its device is lost")

// Finite says whether the KV of whole blocks is finite, by reading all of it. Its error is that of
// ctx, if that ends before, or of blocks that cannot be read. Nobody may write them meanwhile.
func (d *Driver) Finite(ctx context.Context, blocks []kvcache.BlockID) (bool, error) {
	found := engine.FindNotFinite(ctx, d.cfg.Engine, blocks, len(blocks)*d.Layout().BlockTokens)
	if found.Uninspected {
		return false, cmp.Or(ctx.Err(), errUnreadable)
	}
	return found.Layer < 0, nil
}

// BlockHashes is the hash of each full block of tokens under salt, as the prefix
// cache has them.
func (d *Driver) BlockHashes(salt string, tokens []int32) []kvcache.Hash {
	layout := d.Layout()
	return kvcache.PromptHashes(d.cfg.Engine.Model().Digest, layout.ArithmeticClass, salt, tokens, layout.BlockTokens)
}

// CachedBlocks is how many leading blocks of tokens are in the prefix cache, of
// those that hashes, their BlockHashes, name. They may be gone as soon as it
// returns.
func (d *Driver) CachedBlocks(salt string, hashes []kvcache.Hash, tokens []int32) int {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Cached(salt, hashes, tokens)
}
