// Package membershiptest has an etcd in memory, for tests of what uses package
// membership. Only tests import it. It starts no goroutine but those of its
// watches, which end with their context, and timers; all its time is time.Now, so
// that testing/synctest rules it.
package membershiptest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/membership"
)

// ErrCompacted ends a watch of revisions that are forgotten.
var ErrCompacted = errors.New("required revision has been compacted")

// Store is a membership.Store and membership.Leases that can be made to fail as
// etcd does. It is safe for concurrent use.
type Store struct {
	mu        sync.Mutex
	up        chan struct{} // closed while the store answers
	revision  int64
	compacted int64
	entries   map[string]membership.Entry
	history   []membership.Event
	leases    map[int64]*lease
	nextLease int64
	changed   chan struct{} // closed at each change
	deaf      bool          // watches see nothing
	full      bool          // only removals are taken

	// Counts of calls that were answered.
	grants, renewals, puts int
}

type lease struct {
	ttl    time.Duration
	expiry *time.Timer
}

var (
	_ membership.Store  = (*Store)(nil)
	_ membership.Leases = (*Store)(nil)
)

// NewStore makes an empty store that answers.
func NewStore() *Store {
	s := &Store{up: make(chan struct{}), changed: make(chan struct{})}
	close(s.up)
	s.wipe()
	return s
}

// Down makes every call wait for its context, and stops watches from seeing
// anything, until Up. Leases run out meanwhile.
func (s *Store) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = make(chan struct{})
}

// Up ends what Down began; watches see what they missed.
func (s *Store) Up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.up:
	default:
		close(s.up)
	}
	s.wake()
}

// Wipe loses all data: keys, leases and revisions.
func (s *Store) Wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	s.wake()
}

// Compact forgets all history.
func (s *Store) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted, s.history = s.revision, nil
	s.wake()
}

// Deafen makes watches see nothing, while all else works, or ends that.
func (s *Store) Deafen(deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = deaf
	s.wake()
}

// Fill has the store take nothing but removals, through Store and Leases.
func (s *Store) Fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = true
}

// LoseLeases ends all leases and removes what is under them.
func (s *Store) LoseLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.leases {
		s.end(id)
	}
}

// Set writes a key without a lease, as somebody else would, whether or not the
// store answers.
func (s *Store) Set(key, value string) { s.SetUnder(0, key, value) }

// SetUnder is Set under a lease; one that does not live is none.
func (s *Store) SetUnder(lease int64, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[lease] == nil {
		lease = 0
	}
	s.put(key, []byte(value), lease)
}

// GrantNow makes a lease, as Grant does, whether or not the store answers.
func (s *Store) GrantNow(ttl time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant(ttl)
}

// RenewNow renews a lease that lives, whether or not the store answers.
func (s *Store) RenewNow(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil {
		l.expiry.Reset(l.ttl)
	}
}

// RevokeNow ends a lease and removes what is under it, whether or not the store
// answers.
func (s *Store) RevokeNow(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(id)
}

// DeleteNow removes a key as somebody else would, whether or not the store answers.
func (s *Store) DeleteNow(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

// Value is the value of a key; "" if there is none.
func (s *Store) Value(key string) string { return string(s.Entry(key).Value) }

// Entry is a key as it is; without a revision if there is none.
func (s *Store) Entry(key string) membership.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[key]
}

// Counts is how many leases were granted and renewed, and how many keys written
// through Put.
func (s *Store) Counts() (grants, renewals, puts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants, s.renewals, s.puts
}

// Leases is how many leases live.
func (s *Store) Leases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// Get implements membership.Store.
func (s *Store) Get(ctx context.Context, key string) (membership.Entry, error) {
	if err := s.answer(ctx); err != nil {
		return membership.Entry{}, err
	}
	defer s.mu.Unlock()
	return s.entries[key], nil
}

// List implements membership.Store.
func (s *Store) List(ctx context.Context, prefix string) (membership.Listing, error) {
	if err := s.answer(ctx); err != nil {
		return membership.Listing{}, err
	}
	defer s.mu.Unlock()
	listing := membership.Listing{Revision: s.revision}
	for key, e := range s.entries {
		if strings.HasPrefix(key, prefix) {
			listing.Entries = append(listing.Entries, e)
		}
	}
	return listing, nil
}

// Summary implements membership.Store.
func (s *Store) Summary(ctx context.Context, prefix string) (membership.Summary, error) {
	listing, err := s.List(ctx, prefix)
	summary := membership.Summary{Count: len(listing.Entries), Revision: listing.Revision}
	for _, e := range listing.Entries {
		summary.Newest = max(summary.Newest, e.Revision)
	}
	return summary, err
}

// Put implements membership.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, lease, ifRevision int64) (int64, error) {
	if err := s.answer(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if s.full {
		return 0, membership.ErrNoSpace
	}
	if ifRevision != membership.AnyRevision && s.entries[key].Revision != ifRevision {
		return 0, membership.ErrConflict
	}
	if lease != 0 && s.leases[lease] == nil {
		return 0, membership.ErrLeaseNotFound
	}
	s.puts++
	return s.put(key, value, lease), nil
}

// Delete implements membership.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.answer(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.remove(key)
	return nil
}

// Watch implements membership.Store.
func (s *Store) Watch(ctx context.Context, prefix string, afterRevision int64) <-chan membership.Batch {
	batches := make(chan membership.Batch)
	go func() {
		defer close(batches)
		for {
			batch, changed := s.after(prefix, afterRevision)
			if len(batch.Events) > 0 || batch.Err != nil {
				select {
				case batches <- batch:
				case <-ctx.Done():
					return
				}
				if batch.Err != nil {
					return
				}
				afterRevision = batch.Revision
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches
}

// after is what happened after a revision, and a channel that closes when more
// may have.
func (s *Store) after(prefix string, revision int64) (membership.Batch, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.up:
	default:
		return membership.Batch{}, s.changed
	}
	if s.deaf {
		return membership.Batch{}, s.changed
	}
	if revision < s.compacted {
		return membership.Batch{Err: ErrCompacted}, nil
	}
	batch := membership.Batch{Revision: s.revision}
	for _, event := range s.history {
		if event.Revision > revision && strings.HasPrefix(event.Key, prefix) {
			batch.Events = append(batch.Events, event)
		}
	}
	return batch, s.changed
}

// Grant implements membership.Leases.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (int64, time.Duration, error) {
	if err := s.answer(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.Unlock()
	if s.full {
		return 0, 0, membership.ErrNoSpace
	}
	s.grants++
	return s.grant(ttl), ttl, nil
}

// Renew implements membership.Leases.
func (s *Store) Renew(ctx context.Context, id int64) (time.Duration, error) {
	if err := s.answer(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		return 0, membership.ErrLeaseNotFound
	}
	s.renewals++
	l.expiry.Reset(l.ttl)
	return l.ttl, nil
}

// Revoke implements membership.Leases.
func (s *Store) Revoke(ctx context.Context, id int64) error {
	if err := s.answer(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.end(id)
	return nil
}

// answer waits until the store answers; then the caller holds mu.
func (s *Store) answer(ctx context.Context) error {
	for {
		s.mu.Lock()
		up := s.up
		select {
		case <-up:
			if ctx.Err() != nil {
				s.mu.Unlock()
				return ctx.Err()
			}
			return nil
		default:
		}
		s.mu.Unlock()
		select {
		case <-up:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// What follows needs mu.

func (s *Store) wipe() {
	for _, l := range s.leases {
		l.expiry.Stop()
	}
	s.revision, s.compacted, s.history = 1, 0, nil
	s.entries, s.leases = map[string]membership.Entry{}, map[int64]*lease{}
}

func (s *Store) grant(ttl time.Duration) int64 {
	s.nextLease++
	id := s.nextLease
	s.leases[id] = &lease{ttl: ttl, expiry: time.AfterFunc(ttl, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.end(id)
	})}
	return id
}

func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Store) put(key string, value []byte, lease int64) int64 {
	s.revision++
	e := membership.Entry{Key: key, Value: slices.Clone(value), Revision: s.revision, Created: s.revision, Lease: lease}
	if before, ok := s.entries[key]; ok {
		e.Created = before.Created
	}
	s.entries[key] = e
	s.history = append(s.history, membership.Event{Entry: e})
	s.wake()
	return s.revision
}

func (s *Store) remove(key string) {
	if _, ok := s.entries[key]; !ok {
		return
	}
	delete(s.entries, key)
	s.revision++
	s.history = append(s.history, membership.Event{Entry: membership.Entry{Key: key, Revision: s.revision}, Removed: true})
	s.wake()
}

func (s *Store) end(id int64) {
	l := s.leases[id]
	if l == nil {
		return
	}
	l.expiry.Stop()
	delete(s.leases, id)
	for key, e := range s.entries {
		if e.Lease == id {
			s.remove(key)
		}
	}
}
