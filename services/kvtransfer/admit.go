package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// take reserves blocks for an offer's prefix in the cache of its layout, which it makes if it
// may. Its errors are gRPC statuses.
func (s *Service) take(ctx context.Context, layout kvcache.Layout, digest uint64, prefix blockstore.Prefix) (admitted, error) {
	for {
		a, err := s.admit(layout, digest, prefix)
		if err == nil && a.replaces {
			a, err = s.replace(a.old, layout, prefix)
		}
		if err != nil || a.cache != nil {
			return a, err
		}
		select {
		case <-a.moving:
		case <-ctx.Done():
			return admitted{}, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// admitted is what became of an offer at the first look.
type admitted struct {
	// cache is that of the layout, with what it says of the prefix. Nil: there is none.
	cache   *cache
	put     blockstore.Put
	verdict blockstore.Verdict
	// replaces: whoever offers has to replace old, which may be nil, and nobody else
	// does meanwhile. Otherwise somebody does, until moving is closed.
	replaces bool
	old      *cache
	moving   <-chan struct{}
}

// admit offers a prefix to the cache of its layout. If there is none, and may be one, it
// takes the other one down.
func (s *Service) admit(layout kvcache.Layout, digest uint64, prefix blockstore.Prefix) (a admitted, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return a, err
	}
	switch c := s.cache; {
	case s.moving != nil:
		return admitted{moving: s.moving}, nil
	case c != nil && c.digest == digest:
		return s.offerTo(c, prefix), nil
	case !s.replaceable():
		return a, mismatch(c, layoutName(layout, digest))
	case c != nil:
		s.publish(c.store.Changes())
		s.publish(nil, c.store.Hashes())
		stats := c.store.Stats()
		s.keptBefore += stats.Kept
		s.evictionsBefore += stats.Pool.Evictions
	}
	a = admitted{replaces: true, old: s.cache}
	s.cache, s.moving = nil, make(chan struct{})
	return a, nil
}

// unplaced refuses blocks for which no cache could be put up. Only where memory is short
// is the store full; what else is wrong does not pass by waiting.
func unplaced(err error) error {
	if errors.Is(err, errNoMemory) {
		return rpc.Error(codes.ResourceExhausted, api.ReasonStoreFull, err.Error(), 0)
	}
	return status.Errorf(codes.Internal, "the store cannot take blocks of this model: %v", err)
}

// refusal is why nothing new is taken. s.mu is held.
func (s *Service) refusal() error {
	if s.draining || s.closed || !s.running {
		return worker.RefusedError(scheduler.Draining)
	}
	return nil
}

// replaceable says whether the cache may be cleared away for another layout: there
// is none, or nobody writes or reads and it is empty or was long not used. s.mu is
// held.
func (s *Service) replaceable() bool {
	if s.cache == nil {
		return true
	}
	stats := s.cache.store.Stats()
	return stats.Puts+stats.Fetches == 0 &&
		(stats.Pool.Published == 0 || time.Since(s.cache.used) >= s.cfg.LayoutIdle)
}

// offerTo offers a prefix to the cache that there is. s.mu is held.
func (s *Service) offerTo(c *cache, prefix blockstore.Prefix) admitted {
	c.used = time.Now()
	put, verdict := c.store.Offer(prefix)
	if verdict == blockstore.Taken {
		s.puts[put.ID] = 0
	}
	s.noteChange()
	return admitted{cache: c, put: put, verdict: verdict}
}

// replace clears old away, if it is not nil, makes an empty cache and offers it the
// prefix, before another layout can take its place. Only who has to replace calls it.
func (s *Service) replace(old *cache, layout kvcache.Layout, prefix blockstore.Prefix) (admitted, error) {
	if old != nil {
		s.deps.Logger.Info("store drops the blocks of one model for those of another",
			"was", modelName(old.layout.ModelDigest), "becomes", modelName(layout.ModelDigest))
		old.clear(s.deps.Logger)
	}
	c, err := s.newCache(layout)
	s.described.Store(c)
	s.Changed()
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.moving)
	s.cache, s.moving = c, nil
	s.noteChange()
	if err != nil {
		return admitted{}, unplaced(err)
	}
	if err := s.refusal(); err != nil {
		return admitted{}, err
	}
	return s.offerTo(c, prefix), nil
}

// mismatch refuses blocks of another layout than the cache's.
func mismatch(c *cache, other string) error {
	return rpc.Errorf(codes.FailedPrecondition, api.ReasonLayoutMismatch,
		"this store holds blocks of %s and takes none of %s: use another store, restart this one, or wait until its blocks are no longer used",
		layoutName(c.layout, c.digest), other)
}

// layoutName names a layout, for people: what of it differs is most often one of these.
func layoutName(l kvcache.Layout, digest uint64) string {
	return fmt.Sprintf("%s in %s, blocks of %d tokens, digest %#x", modelName(l.ModelDigest), l.ArithmeticClass, l.BlockTokens, digest)
}

// modelName names a model by its digest, for people.
func modelName(digest string) string {
	const enough = 12
	if len(digest) > enough {
		digest = digest[:enough]
	}
	return fmt.Sprintf("model %q", digest)
}
