package kvtransfer

import (
	"context"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/membership"
)

func (s *Service) newMember() *membership.Member {
	return membership.NewMember(membership.MemberConfig{
		Identity: s.deps.Identity, Describe: s.describe, Refuse: s.refuse, Idle: s.idle, Cut: s.cutOff,
		Progress: s.progress, Blocks: s.blocks, Logger: s.deps.Logger,
	})
}

// describe adds to the store's record what it holds.
func (s *Service) describe(record *controlv1.WorkerRecord) {
	record.Capacity = &controlv1.Capacity{}
	if c := s.described.Load(); c != nil {
		record.Capacity.Blocks, record.Capacity.BlockTokens = uint32(c.blocks), uint32(c.layout.BlockTokens)
		record.ModelDigest, record.Layout, record.LayoutDigest = c.layout.ModelDigest, c.layout.Proto(), c.digest
	}
}

// endSessions gives up the sessions with workers of a store that has drained: what it
// keeps connected takes the places of others there, until its process ends or it takes
// blocks again.
func (s *Service) endSessions(ctx context.Context) {
	s.mu.Lock()
	c := s.cache
	s.mu.Unlock()
	if c != nil {
		c.sender.EndSessions(ctx)
	}
}

// refuse takes nothing new from now on, or takes it again.
func (s *Service) refuse(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = refuse
	s.cut = s.cut && refuse
	s.noteChange()
}

// idle waits until nothing is under way.
func (s *Service) idle(ctx context.Context) error {
	for {
		s.mu.Lock()
		left, changed := len(s.puts)+len(s.fetches), s.changed
		s.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cutOff ends what is under way.
func (s *Service) cutOff() {
	s.mu.Lock()
	s.cut = true
	c := s.cache
	var transfers []uint64
	for _, id := range s.puts {
		if id != 0 {
			transfers = append(transfers, id)
		}
	}
	for _, cancel := range s.fetches {
		cancel(errCut)
	}
	s.mu.Unlock()
	for _, id := range transfers {
		c.receiver.Cancel(id)
	}
}

func (s *Service) progress() (*workerv1.DrainProgress, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	progress := &workerv1.DrainProgress{Transfers: uint32(len(s.puts) + len(s.fetches))}
	if s.cache != nil {
		pool := s.cache.store.Stats().Pool
		progress.BlocksHeld = uint32(pool.Held + pool.Quarantined)
	}
	return progress, s.changed
}

// blocks are those held at one point of the sequence of KV events.
func (s *Service) blocks() (hashes []uint64, lastEvent uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache != nil {
		hashes = kvcache.HashValues(s.cache.store.Hashes())
	}
	return hashes, s.lastEvent
}

func (s *Service) load() (*controlv1.LoadReport, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stats blockstore.Stats
	if s.cache != nil {
		stats = s.cache.store.Stats()
	}
	return stats.LoadReport(), s.changed
}
