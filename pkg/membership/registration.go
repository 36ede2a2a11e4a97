package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Registration keeps one record in etcd. Its methods are safe for concurrent
// use.
type Registration struct {
	client *Client
	log    *slog.Logger
	key    string
	epoch  uint64

	first   chan struct{} // closed when the record was first in etcd
	changed chan struct{} // holds one token when the record was updated
	stop    context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	record *controlv1.WorkerRecord

	// What follows belongs to the goroutine, and once that has ended to Close,
	// under closing.
	closing    sync.Mutex
	lease      int64     // 0: none
	expires    time.Time // of the lease, on the safe side
	revision   int64     // of the record as this registration wrote it
	written    bool      // it was in etcd at least once
	superseded bool      // another process has the id
	// overwritten: somebody wrote over the record last, and that is logged.
	overwritten bool
	failing     bool // the last request failed, and that is logged
}

// Register puts the record into etcd and keeps it there, for as long as the
// registration is not closed and whatever happens to etcd. It copies the record
// and does not wait; Wait does.
func (c *Client) Register(record *controlv1.WorkerRecord) *Registration {
	ctx, stop := context.WithCancel(c.life)
	r := &Registration{
		client:  c,
		log:     c.log.With(slog.String("worker", record.GetId())),
		key:     WorkerKey(record.GetRole(), record.GetId()),
		epoch:   record.GetEpoch(),
		first:   make(chan struct{}),
		changed: make(chan struct{}, 1),
		stop:    stop,
		done:    make(chan struct{}),
		record:  proto.CloneOf(record),
	}
	c.registrations.Add(1)
	go func() {
		defer c.registrations.Done()
		defer close(r.done)
		r.run(ctx)
	}()
	return r
}

// ErrTaken is that another process keeps an id, or had it when it crashed.
var ErrTaken = errors.New("another process has this id")

// leaseMargin is how much later than its time etcd may end a lease.
const leaseMargin = 5 * time.Second

// AwaitFree waits until no process has the id. The record of one that crashed is there until its
// lease runs out; one that is there for longer than a lease of this client is ErrTaken, though another
// client may have had longer ones.
func (c *Client) AwaitFree(ctx context.Context, role controlv1.Role, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.LeaseTTL+leaseMargin, ErrTaken)
	defer cancel()
	r := Registration{key: WorkerKey(role, id)} // that nothing registers
	for first := true; ; first = false {
		there, err := answer(ctx, c, c.store.Get, r.key)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("look for %s: %w", r.key, err)
		}
		if _, held := r.held(there); err == nil && !held {
			return nil
		}
		if first {
			c.log.Warn("another process has this id, or had it before it crashed: waiting until its lease runs out", slog.String("key", r.key))
		}
		if !sleep(ctx, c.cfg.RetryWait) {
			return context.Cause(ctx)
		}
	}
}

// Wait waits until the record was in etcd for the first time.
func (r *Registration) Wait(ctx context.Context) error {
	select {
	case <-r.first:
		return nil
	default:
	}
	select {
	case <-r.first:
		return nil
	case <-r.done:
		return fmt.Errorf("register at %s: the registration is closed", r.key)
	case <-ctx.Done():
		return fmt.Errorf("register at %s: %w: is etcd up?", r.key, ctx.Err())
	}
}

// Update changes the record, which etcd has soon after. The change must not
// touch id, role and epoch, and must not keep the record.
func (r *Registration) Update(change func(*controlv1.WorkerRecord)) {
	r.mu.Lock()
	next := proto.CloneOf(r.record)
	change(next)
	next.Id, next.Role, next.Epoch = r.record.GetId(), r.record.GetRole(), r.record.GetEpoch()
	r.record = next
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Close removes the record, unless another process has taken its place, and ends
// the registration. If etcd does not answer before ctx ends or the request
// timeout is over, the record stays until its lease runs out, and the error says
// so.
func (r *Registration) Close(ctx context.Context) error {
	r.stop()
	<-r.done
	r.closing.Lock()
	defer r.closing.Unlock()
	if r.lease == 0 {
		return nil
	}
	// Revoking removes exactly what is under the lease: a record that another
	// process wrote over this one is under another.
	err := r.client.bounded(ctx, func(ctx context.Context) error {
		return r.client.leases.Revoke(ctx, r.lease)
	})
	if err != nil && !errors.Is(err, errAbandoned) {
		return fmt.Errorf("remove %s: %w: it expires by itself within %s", r.key, err, r.client.cfg.LeaseTTL)
	}
	r.lease = 0
	return nil
}

// run keeps the record in etcd until ctx ends.
func (r *Registration) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := r.keep(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			r.failed(err)
			wait = r.client.cfg.RetryWait
		} else if r.failing {
			r.failing = false
			r.log.Info("registration is in etcd again", slog.String("key", r.key))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.changed:
			r.revision = 0 // so that keep writes the record
		case <-timer.C:
		}
		timer.Stop()
	}
}

// keep does what is due and returns how long it then has time.
func (r *Registration) keep(ctx context.Context) (time.Duration, error) {
	if r.client.there.Err() != nil {
		return 0, errAbandoned
	}
	if r.lease != 0 && time.Until(r.expires) <= 0 {
		// etcd may have kept it, if it was away too; but it promised nothing.
		r.log.Warn("lease ran out: registering again", slog.String("key", r.key))
		r.lease = 0
	}
	if r.lease != 0 {
		if err := r.renew(ctx); err != nil {
			return 0, err
		}
	}
	there, err := answer(ctx, r.client, r.client.store.Get, r.key)
	if err != nil {
		return 0, err
	}
	if other, held := r.held(there); held && r.written {
		r.yield(other)
		return r.client.cfg.LeaseTTL / 2, nil
	}
	r.overwrite(there)
	if r.superseded {
		r.superseded = false
		r.log.Info("the other process with this id is gone: registering again", slog.String("key", r.key))
	}
	if r.lease == 0 || there.Revision == 0 || there.Revision != r.revision {
		if err := r.write(ctx, there); err != nil {
			return 0, err
		}
	}
	return time.Until(r.expires) / 2, nil
}

// renew renews the lease. A lease that is gone is no error: the record is
// written under a new one.
func (r *Registration) renew(ctx context.Context) error {
	sent := time.Now()
	ttl, err := answer(ctx, r.client, r.client.leases.Renew, r.lease)
	if errors.Is(err, ErrLeaseNotFound) {
		r.log.Warn("lease is lost: registering again", slog.String("key", r.key))
		r.lease = 0
		return nil
	}
	if err != nil {
		return err
	}
	r.expires = sent.Add(ttl)
	return nil
}

// write writes the record under the lease, or under a new one. It fails if the
// key has changed since it was looked at.
func (r *Registration) write(ctx context.Context, there Entry) error {
	if r.lease == 0 {
		sent := time.Now()
		err := r.client.bounded(ctx, func(ctx context.Context) error {
			lease, ttl, err := r.client.leases.Grant(ctx, r.client.cfg.LeaseTTL)
			if err != nil {
				return err
			}
			r.lease, r.expires = lease, sent.Add(ttl)
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	value, err := protojson.Marshal(r.record)
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	err = r.client.bounded(ctx, func(ctx context.Context) (err error) {
		r.revision, err = r.client.store.Put(ctx, r.key, value, r.lease, there.Revision)
		return err
	})
	if errors.Is(err, ErrLeaseNotFound) {
		r.lease = 0
	}
	if err != nil {
		r.revision = 0
		return err
	}
	if !r.written {
		r.written = true
		close(r.first)
	}
	return nil
}

// yield leaves the key to the process that wrote it last.
func (r *Registration) yield(otherEpoch uint64) {
	if r.superseded {
		return
	}
	r.superseded = true
	r.log.Error("another process registered this worker id later: yielding to it; give each worker its own id",
		slog.String("key", r.key), slog.Uint64("epoch", r.epoch), slog.Uint64("other_epoch", otherEpoch))
}

// failed logs the first of a row of failures.
func (r *Registration) failed(err error) {
	if r.failing || errors.Is(err, errAbandoned) {
		return
	}
	r.failing = true
	r.log.Warn("cannot keep the registration in etcd: trying until it answers", slog.String("key", r.key), slog.Any("error", err))
}

// held says whether another live process holds the key: its record is good, of
// another epoch, and under a lease, which somebody has to renew. A record without
// one is nobody's, and so is one under this registration's own lease, and what does
// not parse; they are written over.
func (r *Registration) held(there Entry) (otherEpoch uint64, held bool) {
	if there.Lease == 0 || there.Lease == r.lease {
		return 0, false
	}
	record, err := readRecord(there)
	if err != nil || record.GetEpoch() == r.epoch {
		return 0, false
	}
	return record.GetEpoch(), true
}

// overwrite says, once as long as it goes on, that somebody wrote over the record.
func (r *Registration) overwrite(there Entry) {
	if there.Revision == 0 || there.Revision == r.revision {
		r.overwritten = false
		return
	}
	if r.overwritten || !r.written || r.revision == 0 {
		return
	}
	r.overwritten = true
	r.log.Warn("another client overwrote this worker's record with one that nobody keeps alive: writing it again; find out who may write to etcd",
		slog.String("key", r.key), slog.Int64("lease", there.Lease))
}
