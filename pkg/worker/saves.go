package worker

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// LimitSaves says how many prefixes may be saved elsewhere at a time: 0 where
// nobody takes them. It does nothing without Config.Save.
func (d *Driver) LimitSaves(saves int) {
	if d.cfg.Save != nil && d.cfg.StopSave != nil {
		d.handle(scheduler.SaveLimit{Saves: saves})
	}
}

// SaveDone ends a save: its blocks are not read any more. saved says that somebody
// else has them now.
func (d *Driver) SaveDone(id scheduler.SaveID, saved bool) {
	d.handle(scheduler.SaveDone{ID: id, Saved: saved})
}

// CachedTokens is how many leading tokens, in whole blocks, are in the prefix cache
// under salt. They may be gone as soon as it returns.
func (d *Driver) CachedTokens(salt string, tokens []int32) int {
	layout := d.Layout()
	hashes := kvcache.BlockHashes(kvcache.RootHash(d.cfg.Engine.Model().Digest, layout.ArithmeticClass, salt), tokens, layout.BlockTokens)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Cached(salt, hashes, tokens) * layout.BlockTokens
}
