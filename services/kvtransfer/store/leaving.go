package store

import (
	"context"
	"os"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/worker"
)

const (
	// departDelay is for how long at least the record says that the store drains
	// before it is removed: long enough that routers see it, who keep a worker that
	// etcd merely lost.
	departDelay = time.Second
	// departTimeout bounds how long removing the record may take.
	departTimeout = 2 * time.Second
)

// leaving is the store's record in the membership, and its way out.
type leaving struct {
	service *Service
	drains  chan struct{} // closed when the store drains

	mu           sync.Mutex
	registration worker.Registration
	begun        bool
	left         bool   // the record is gone, or about to be
	shelf        *shelf // that the record describes; nil: none
	cut          *time.Timer
	departed     sync.Once
}

func (l *leaving) join(register func(*controlv1.WorkerRecord) worker.Registration) {
	id := l.service.deps.Identity
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return // nobody would remove the record
	}
	record := &controlv1.WorkerRecord{
		Id: id.ID, Role: id.Role, Epoch: id.Epoch, Addresses: id.Addresses,
		State:  controlv1.WorkerState_WORKER_STATE_SERVING,
		Engine: id.Engine, Version: id.Version, Host: host,
	}
	l.fill(record)
	l.registration = register(record)
}

// describe lets the record say what the store holds from now on.
func (l *leaving) describe(h *shelf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shelf = h
	if l.registration != nil && !l.left {
		l.registration.Update(l.fill)
	}
}

// fill writes what changes into a record. l.mu is held.
func (l *leaving) fill(record *controlv1.WorkerRecord) {
	if l.begun {
		record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
	}
	record.Capacity, record.ModelDigest, record.Layout, record.LayoutDigest = &controlv1.Capacity{}, "", nil, 0
	if h := l.shelf; h != nil {
		record.Capacity.Blocks, record.Capacity.BlockTokens = uint32(h.blocks), uint32(h.layout.BlockTokens)
		record.ModelDigest, record.Layout, record.LayoutDigest = h.layout.ModelDigest, layoutMessage(h.layout), h.digest
	}
}

// leave takes nothing new from now on and says so to the mesh. What is still under
// way after grace is ended; 0 lets it finish. It does not wait.
func (l *leaving) leave(grace time.Duration) {
	transfers := l.service.refuse()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begun = true
		close(l.drains)
		l.service.deps.Logger.Info("store drains", "transfers", transfers)
		if l.registration != nil {
			l.registration.Update(l.fill)
		}
	}
	if grace > 0 {
		if l.cut != nil {
			l.cut.Stop()
		}
		l.cut = time.AfterFunc(grace, l.service.cutOff)
	}
}

func (l *leaving) drain(ctx context.Context, cleanup time.Duration) {
	l.leave(0)
	if err := l.service.idle(ctx); err != nil {
		l.service.deps.Logger.Warn("drain ends before its transfers do", "error", err)
		l.service.cutOff()
	}
	l.depart(ctx, cleanup)
}

// departWhenIdle removes the record once the store has left and is idle, and gives up its
// sessions with workers: what it keeps connected takes the places of others there, until
// its process ends.
func (l *leaving) departWhenIdle(ctx context.Context) {
	select {
	case <-l.drains:
	case <-ctx.Done():
		return
	}
	seen := time.NewTimer(departDelay)
	defer seen.Stop()
	select {
	case <-seen.C:
	case <-ctx.Done():
		return
	}
	if l.service.idle(ctx) == nil {
		l.depart(ctx, departTimeout)
		l.service.closeSender()
	}
}

// depart removes the record, once; who comes second waits until it is done.
func (l *leaving) depart(ctx context.Context, cleanup time.Duration) {
	l.departed.Do(func() {
		l.mu.Lock()
		registration := l.registration
		l.left = true
		if l.cut != nil {
			l.cut.Stop()
		}
		l.mu.Unlock()
		if registration == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if err := registration.Close(ctx); err != nil { // etcd is away: the lease ends it
			l.service.deps.Logger.Warn("store could not leave the membership", "error", err)
		}
	})
}

// refuse takes nothing new from now on, and counts what is under way.
func (s *Service) refuse() (transfers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.noteChange()
	return len(s.puts) + len(s.fetches)
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

// closeSender ends the sessions in which blocks were sent.
func (s *Service) closeSender() {
	s.mu.Lock()
	h := s.shelf
	s.mu.Unlock()
	if h != nil {
		h.closeSender(s.deps.Logger)
	}
}

// cutOff ends what is under way.
func (s *Service) cutOff() {
	s.mu.Lock()
	s.cut = true
	h := s.shelf
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
		h.receiver.Cancel(id)
	}
}
