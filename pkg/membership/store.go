package membership

import (
	"context"
	"errors"
	"time"
)

// Store is the part of etcd's keys that this package needs. Calls end with their
// context. It is safe for concurrent use.
type Store interface {
	// Get is one key; an entry without revision says that there is none.
	Get(ctx context.Context, key string) (Entry, error)
	// List is all keys that begin with the prefix, at one revision.
	List(ctx context.Context, prefix string) (Listing, error)
	// Summary is List without keys and values.
	Summary(ctx context.Context, prefix string) (Summary, error)
	// Put writes a key under a lease (0: none), if the key's modification
	// revision is still the given one (0: it does not exist; AnyRevision:
	// whatever is there), and returns the new one. ErrConflict says that it was
	// another; ErrLeaseNotFound that the lease is gone; ErrNoSpace that the store is full.
	Put(ctx context.Context, key string, value []byte, lease, ifRevision int64) (int64, error)
	// Delete removes a key, if it is there.
	Delete(ctx context.Context, key string) error
	// Watch sends what happens to keys with the prefix after a revision, until
	// the context ends or the watch fails: then the last batch has an error and
	// the channel is closed.
	Watch(ctx context.Context, prefix string, afterRevision int64) <-chan Batch
}

// Leases is the part of etcd's leases that this package needs. Calls end with
// their context. It is safe for concurrent use.
type Leases interface {
	// Grant makes a lease and returns its id and the time it lives, which etcd
	// may choose longer than asked for. ErrNoSpace says that the store is full.
	Grant(ctx context.Context, ttl time.Duration) (int64, time.Duration, error)
	// Renew gives a lease its whole time again. ErrLeaseNotFound says that it is
	// gone.
	Renew(ctx context.Context, lease int64) (time.Duration, error)
	// Revoke ends a lease and removes the keys under it.
	Revoke(ctx context.Context, lease int64) error
}

// AnyRevision lets Put write whatever is there.
const AnyRevision int64 = -1

// What a Store or Leases may answer.
var (
	// ErrConflict says that a key was changed by somebody else.
	ErrConflict = errors.New("another client changed the key")
	// ErrLeaseNotFound says that a lease has expired or was revoked.
	ErrLeaseNotFound = errors.New("the lease is gone")
	// ErrNoSpace says that etcd takes nothing but removals, until an operator makes space and
	// disarms its alarm.
	ErrNoSpace = errors.New("etcd has no space left: make some, and disarm its alarm NOSPACE")
)

// Entry is one key.
type Entry struct {
	Key string
	// Value; of one that is longer than any that counts, something as long.
	Value []byte
	// Revision is the revision at which the key was last written, Created the one at
	// which it came to be.
	Revision, Created int64
	// Lease is the lease that the key goes with; 0: none.
	Lease int64
}

// Listing is keys at one revision of the store.
type Listing struct {
	Entries  []Entry
	Revision int64
}

// Summary is what a Listing comes to.
type Summary struct {
	// Count of keys.
	Count int
	// Newest is the highest revision of a key; 0 without keys.
	Newest int64
	// Revision of the store.
	Revision int64
}

// Batch is changes in the order they happened.
type Batch struct {
	Events []Event
	// Revision up to which the watch has seen everything; 0 if it does not say.
	Revision int64
	// Err is why the watch has ended.
	Err error
}

// Event is the change of one key.
type Event struct {
	Entry
	// Removed says that the key is gone; then there is no value.
	Removed bool
}
