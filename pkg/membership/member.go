package membership

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// MemberConfig is what a Member is made of. Its functions may be called at any time
// and by several goroutines; none may call the Member.
type MemberConfig struct {
	Identity Identity
	// Describe adds to a record, which has the identity, what the worker says of itself
	// while it serves.
	Describe func(record *controlv1.WorkerRecord)
	// Refuse takes nothing new from now on, or takes it again. It does not block.
	Refuse func(refuse bool)
	// Idle waits until nothing is left of what the worker took. Its error is ctx's.
	Idle func(ctx context.Context) error
	// Cut ends what is left. It does not block.
	Cut func()
	// Progress is what is left of a drain, and a channel that is closed when that may
	// have changed. Blocks are the hashes of the prefix cache, and the number of the last
	// KV event in it. Only Register needs them.
	Progress func() (*workerv1.DrainProgress, <-chan struct{})
	Blocks   func() (hashes []uint64, lastEvent uint64)
	Logger   *slog.Logger
}

// Announcement is a worker's record in the membership; *Registration is one.
type Announcement interface {
	Update(change func(*controlv1.WorkerRecord))
	Close(ctx context.Context) error
}

// State is where in its life a Member is.
type State int

const (
	// Serving takes requests, and its record says so.
	Serving State = iota
	// Draining takes nothing new and finishes what it has; its record says so.
	Draining
	// Stopped has nothing left, nor a record.
	Stopped
)

// Member is a worker's place in the mesh, its way in, out and back: Join announces it;
// Leave takes nothing new, and once nothing is left Run removes the record; Undrain
// takes that back, at any time until Drain, which is the end of the worker. It is safe
// for concurrent use.
//
// Lock order: departing, mu, then those of MemberConfig's functions.
type Member struct {
	cfg MemberConfig

	// departing holds a token while a record is removed, which is bounded: nobody writes
	// another one meanwhile.
	departing chan struct{}

	mu           sync.Mutex
	announce     func(*controlv1.WorkerRecord) Announcement // nil: not joined
	announcement Announcement                               // nil: there is no record
	leaving      Leaving
	drain        *drain        // nil: it takes requests
	drains       chan struct{} // closed while drain is there
	final        bool          // there is no way back
}

// drain is one time that a worker leaves.
type drain struct {
	departAt time.Time       // at the earliest
	undone   context.Context // ends when it is taken back
	undo     context.CancelFunc
	cut      *time.Timer // nil: what is left may finish
}

// departTimeout bounds how long removing the record may take.
const departTimeout = 2 * time.Second

// ErrEnds is a drain that cannot be taken back, since the worker ends.
var ErrEnds = errors.New("this worker is shutting down and takes no more requests: start another one")

// NewMember returns the place of a worker that serves and has not joined.
func NewMember(cfg MemberConfig) *Member {
	return &Member{cfg: cfg, departing: make(chan struct{}, 1), drains: make(chan struct{})}
}

// record is what the worker says of itself. mu is held.
func (m *Member) record() *controlv1.WorkerRecord {
	record := m.cfg.Identity.Record()
	m.cfg.Describe(record)
	record.State = m.leaving.WorkerState()
	return record
}

// Join registers the worker, unless it has ended already. Its gRPC server must be
// serving. announce must not block nor call the worker.
func (m *Member) Join(announce func(*controlv1.WorkerRecord) Announcement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.final {
		return // nobody would remove the record
	}
	m.announce = announce
	if m.leaving.State() != Stopped {
		m.announcement = announce(m.record())
	}
}

// Changed says that the record is another one now.
func (m *Member) Changed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update()
}

// update brings the record up to date, if there is one. mu is held.
func (m *Member) update() {
	if m.announcement == nil {
		return
	}
	now := m.record()
	m.announcement.Update(func(record *controlv1.WorkerRecord) {
		record.State, record.Capacity, record.ModelDigest = now.GetState(), now.GetCapacity(), now.GetModelDigest()
		record.Layout, record.LayoutDigest = now.GetLayout(), now.GetLayoutDigest()
	})
}

// Leave takes nothing new from now on and says so to the mesh. What still runs after
// grace is ended; 0 lets it finish, and takes no earlier grace back. When nothing is
// left, Run removes the record; the process stays until it is stopped. It does not
// wait. undone ends when the drain is taken back.
func (m *Member) Leave(grace time.Duration) (undone context.Context) { return m.leave(grace, false) }

// LeaveForGood is Leave without a way back.
func (m *Member) LeaveForGood() { m.leave(0, true) }

func (m *Member) leave(grace time.Duration, final bool) (undone context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.final = m.final || final
	m.cfg.Refuse(true) // before anybody asks what is left
	if m.leaving.Begin(time.Now()) {
		m.drain = &drain{departAt: m.leaving.DepartAt()}
		m.drain.undone, m.drain.undo = context.WithCancel(context.Background())
		close(m.drains)
		m.cfg.Logger.Info("draining: taking no new requests")
		m.update()
	}
	if grace > 0 {
		d := m.drain
		if d.cut != nil {
			d.cut.Stop()
		}
		d.cut = time.AfterFunc(grace, func() { m.cutOff(d) })
	}
	return m.drain.undone
}

// cutOff ends what is left of a drain, unless that was taken back.
func (m *Member) cutOff(d *drain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drain == d {
		m.cfg.Cut()
	}
}

// Undrain takes requests again, and says so to the mesh; what a grace has not ended yet
// goes on. It waits while a record is removed. Without a drain it does nothing; its
// error is ErrEnds or that of ctx.
func (m *Member) Undrain(ctx context.Context) error {
	select {
	case m.departing <- struct{}{}:
		defer func() { <-m.departing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.final {
		return ErrEnds
	}
	if was, _ := m.leaving.Undo(); !was {
		return nil
	}
	m.drain.undo()
	if m.drain.cut != nil {
		m.drain.cut.Stop()
	}
	m.drain, m.drains = nil, make(chan struct{})
	m.cfg.Refuse(false)
	m.cfg.Logger.Info("taking requests again")
	if m.announcement == nil && m.announce != nil { // it had left
		m.announcement = m.announce(m.record())
	} else {
		m.update()
	}
	return nil
}

// Drain leaves for good and waits until nothing is left. What is left when ctx ends is
// cut off. Then the record is removed, for which cleanup is the limit; if etcd is away
// it goes with its lease.
func (m *Member) Drain(ctx context.Context, cleanup time.Duration) {
	m.LeaveForGood()
	if err := m.cfg.Idle(ctx); err != nil {
		m.cfg.Logger.Warn("drain ended with work left: cutting it off", "error", err)
		m.cfg.Cut()
	}
	m.mu.Lock()
	d := m.drain
	m.mu.Unlock()
	m.depart(ctx, d, cleanup)
}

// Run removes the record each time that the worker has drained, until ctx ends.
func (m *Member) Run(ctx context.Context) {
	m.whenDrained(ctx, func(ctx context.Context, d *drain) {
		seen := time.NewTimer(time.Until(d.departAt))
		defer seen.Stop()
		select {
		case <-seen.C:
			m.depart(ctx, d, departTimeout)
		case <-d.undone.Done():
		case <-ctx.Done():
		}
	})
}

// WhenDrained calls do each time that the worker takes nothing new and nothing is left
// of what it took, until ctx ends.
func (m *Member) WhenDrained(ctx context.Context, do func(context.Context)) {
	m.whenDrained(ctx, func(ctx context.Context, _ *drain) { do(ctx) })
}

func (m *Member) whenDrained(ctx context.Context, do func(context.Context, *drain)) {
	for {
		m.mu.Lock()
		drains := m.drains
		m.mu.Unlock()
		select {
		case <-drains:
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		d := m.drain
		m.mu.Unlock()
		if d == nil {
			continue // taken back already
		}
		if m.idle(ctx, d) {
			do(ctx, d)
		}
		select {
		case <-d.undone.Done():
		case <-ctx.Done():
			return
		}
	}
}

// idle waits until nothing is left, and says whether that came before the end of the
// drain and of ctx.
func (m *Member) idle(ctx context.Context, d *drain) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.undone, cancel)()
	return m.cfg.Idle(ctx) == nil
}

// depart removes the record, if the drain was not taken back; who comes second waits
// until it is done.
func (m *Member) depart(ctx context.Context, d *drain, cleanup time.Duration) {
	m.departing <- struct{}{}
	defer func() { <-m.departing }()
	m.mu.Lock()
	if m.drain != d {
		m.mu.Unlock()
		return
	}
	announcement := m.announcement
	m.announcement = nil
	m.leaving.Depart()
	if d.cut != nil {
		d.cut.Stop()
	}
	m.mu.Unlock()
	if announcement == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := announcement.Close(ctx); err != nil { // etcd is away: the lease ends it
		m.cfg.Logger.Warn("could not leave the membership", "error", err)
	}
}
