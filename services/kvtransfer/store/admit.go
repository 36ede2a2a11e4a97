package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// admit takes s.mu and returns with it held when the shelf is one of layout, which
// it puts up if it may. On an error, a gRPC status, s.mu is not held.
func (s *Service) admit(ctx context.Context, layout kvcache.Layout, digest uint64) error {
	s.mu.Lock()
	for {
		if err := s.refusal(); err != nil {
			s.mu.Unlock()
			return err
		}
		if s.moving == nil && s.shelf != nil && s.shelf.digest == digest {
			return nil
		}
		if s.moving == nil && !s.replaceable() {
			err := mismatch(s.shelf, layoutName(layout, digest))
			s.mu.Unlock()
			return err
		}
		var err error
		if moved := s.moving; moved != nil {
			s.mu.Unlock()
			select {
			case <-moved:
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
			s.mu.Lock()
		} else if err = s.replace(layout); err != nil {
			s.mu.Unlock()
			return unplaced(err)
		}
	}
}

// unplaced refuses blocks for which no shelf could be put up. Only where memory is short
// is the store full; what else is wrong does not pass by waiting.
func unplaced(err error) error {
	if errors.Is(err, errNoMemory) {
		return rpc.Error(codes.ResourceExhausted, ReasonFull, err.Error(), 0)
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

// replaceable says whether the shelf may be cleared away for another layout: there
// is none, or nobody writes or reads and it is empty or was long not used. s.mu is
// held.
func (s *Service) replaceable() bool {
	if s.shelf == nil {
		return true
	}
	stats := s.shelf.stock.Stats()
	return stats.Arrivals+stats.Readings == 0 &&
		(stats.Pool.Published == 0 || time.Since(s.shelf.used) >= s.cfg.LayoutIdle)
}

// replace clears the shelf away and puts up an empty one. s.mu is held, and is let
// go meanwhile; moving keeps others off.
func (s *Service) replace(layout kvcache.Layout) error {
	old, moved := s.shelf, make(chan struct{})
	if old != nil {
		s.publish(old.stock.Changes())
		s.publish(nil, old.stock.Hashes())
		s.metrics.clearedAway(old.stock.Stats())
	}
	s.shelf, s.moving = nil, moved
	s.mu.Unlock()
	if old != nil {
		s.deps.Logger.Info("store gives up blocks of one model for those of another",
			"was", modelName(old.layout.ModelDigest), "becomes", modelName(layout.ModelDigest))
		old.clear(s.deps.Logger)
	}
	h, err := s.newShelf(layout)
	s.leaving.describe(h)
	s.mu.Lock()
	s.shelf, s.moving = h, nil
	close(moved)
	s.noteChange()
	return err
}

// mismatch refuses blocks of another layout than the shelf's.
func mismatch(h *shelf, other string) error {
	return rpc.Errorf(codes.FailedPrecondition, ReasonLayout,
		"this store holds blocks of %s, and none of %s: use another store, restart this one, or wait until those are not used any more",
		layoutName(h.layout, h.digest), other)
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
