package kvtransfer

import (
	"context"
	"testing"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Idle waits until nothing is under way.
func (s *Service) Idle(ctx context.Context) error { return s.idle(ctx) }

// Check finds blocks that cannot be had although nothing is under way.
func (s *Service) Check(t *testing.T) {
	t.Helper()
	stats, _ := s.stats()
	p := stats.Pool
	if p.Misuses != 0 || p.Free+p.Cached != p.Total || stats.Puts+stats.Fetches != 0 {
		t.Errorf("something is left: %+v", stats)
	}
}

// Published counts the blocks that can be fetched.
func (s *Service) Published() int {
	stats, _ := s.stats()
	return stats.Pool.Published
}

// Transfers counts those under way.
func (s *Service) Transfers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.puts) + len(s.fetches)
}

// Offer and Fetch are the calls without a network.
func (s *Service) Offer(ctx context.Context, r *kvtransferv1.OfferRequest) error {
	_, err := s.offer(ctx, r)
	return err
}

func (s *Service) Fetch(ctx context.Context, r *kvtransferv1.FetchRequest) error {
	_, err := s.fetch(ctx, r)
	return err
}

// CheckMisuses finds calls that named a block in the wrong state.
func (s *Service) CheckMisuses(t *testing.T) {
	t.Helper()
	stats, _ := s.stats()
	if p := stats.Pool; p.Misuses != 0 || p.Free+p.Cached+p.Held+p.Quarantined != p.Total {
		t.Errorf("the store is wrong: %+v", stats)
	}
}
