package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// keysPrefix is where API keys of clients are kept, by their ids.
const keysPrefix = "/tandem/v1/keys/"

// MaxKeys is how many API keys there may be, with those that were revoked lately: routers could not list
// many more, and then would not hear that one is revoked.
const MaxKeys = 10_000

// revokedKept is how long a key that was revoked or has expired is still listed.
const revokedKept = 30 * 24 * time.Hour

// Errors of keys.
var (
	// ErrKeyExists says that another key has the id.
	ErrKeyExists = errors.New("another key has this id")
	// ErrTooManyKeys says that there are MaxKeys already.
	ErrTooManyKeys = fmt.Errorf("there are %d keys, the most that routers take", MaxKeys)
	// ErrNoKey says that there is no such key, or several.
	ErrNoKey = errors.New("no key")
)

// WatchKeys calls notify with all API keys, the oldest first, as soon as they are known and
// whenever they change. While etcd is away the last ones stand. notify runs in the caller's
// goroutine, and does not change what it gets. A key that does not parse is left out and logged.
// WatchKeys returns ctx's error when ctx ends, and never before.
func (c *Client) WatchKeys(ctx context.Context, notify func([]*controlv1.ApiKey)) error {
	keys, malformed := make(map[string]*controlv1.ApiKey), newThrottle()
	changed := true
	return c.follow(ctx, keysPrefix, follower{
		reset: func() {
			clear(keys)
			changed = true
		},
		apply: func(event Event) {
			changed = true
			delete(keys, event.Key)
			if event.Removed {
				return
			}
			key, err := readKey(event.Entry)
			if err != nil {
				malformed.Warn(c.log, time.Now(), "API key in etcd is malformed: it is left out", slog.String("key", shown(event.Key)), slog.Any("error", err))
				return
			}
			keys[event.Key] = key
		},
		notify: func(_ bool, asOf time.Time) {
			if !asOf.IsZero() && changed { // also what came right before etcd went away
				changed = false
				notify(sortedKeys(maps.Values(keys)))
			}
		},
	})
}

// sortedKeys are keys as they were created.
func sortedKeys(keys func(yield func(*controlv1.ApiKey) bool)) []*controlv1.ApiKey {
	return slices.SortedFunc(keys, func(a, b *controlv1.ApiKey) int {
		return cmp.Or(a.GetCreated().AsTime().Compare(b.GetCreated().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
}

// readKey is the API key of an entry.
func readKey(entry Entry) (*controlv1.ApiKey, error) {
	key := &controlv1.ApiKey{}
	if err := readValue(entry.Value, key); err != nil {
		return nil, err
	}
	if keysPrefix+key.GetId() != entry.Key {
		return nil, errors.New("it belongs under another key")
	}
	return key, nil
}

// CreateKey keeps an API key, one that expires for revokedKept more; ErrKeyExists: another one has its id; ErrTooManyKeys: there are MaxKeys, about.
func (c *Client) CreateKey(ctx context.Context, key *controlv1.ApiKey) error {
	summary, err := answer(ctx, c, c.store.Summary, keysPrefix)
	switch {
	case err != nil:
		return err
	case summary.Count >= MaxKeys:
		return ErrTooManyKeys
	}
	var keep time.Duration
	if expires := key.GetExpires(); expires != nil { // as long as one that is revoked
		keep = max(time.Until(expires.AsTime()), 0) + revokedKept
	}
	err = c.putKey(ctx, key, keep, 0)
	if errors.Is(err, ErrConflict) {
		err = ErrKeyExists
	}
	return err
}

// ListKeys is all API keys, the oldest first.
func (c *Client) ListKeys(ctx context.Context) (keys []*controlv1.ApiKey, err error) {
	entries, err := c.keyEntries(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if key, err := readKey(entry); err == nil { // routers say which are malformed
			keys = append(keys, key)
		}
	}
	return sortedKeys(slices.Values(keys)), nil
}

// RevokeKey revokes the API key with this id, or the only one whose id begins so, and returns its
// whole id; ErrNoKey: there is none, or there are several. One that is revoked stays so, and is listed
// for revokedKept more, or if etcd is full, no more.
func (c *Client) RevokeKey(ctx context.Context, id string) (string, error) {
	entries, err := c.keyEntries(ctx, id)
	if err != nil {
		return "", err
	}
	exact := slices.IndexFunc(entries, func(e Entry) bool { return e.Key == keysPrefix+id })
	switch {
	case exact >= 0:
		entries = entries[exact : exact+1]
	case len(entries) == 0 || id == "":
		return "", fmt.Errorf("%w: none has an id that begins with %q", ErrNoKey, shown(id))
	case len(entries) > 1:
		return "", fmt.Errorf("%w: %d have an id that begins with %q: give more of it", ErrNoKey, len(entries), shown(id))
	}
	key, err := readKey(entries[0])
	if err != nil { // it lets nobody in
		key = &controlv1.ApiKey{Id: strings.TrimPrefix(entries[0].Key, keysPrefix)}
	}
	if key.GetRevoked() != nil {
		return key.GetId(), nil
	}
	key = proto.CloneOf(key)
	key.Revoked = timestamppb.Now()
	err = c.putKey(ctx, key, revokedKept, AnyRevision)
	if errors.Is(err, ErrNoSpace) { // which takes nothing but removals
		err = c.bounded(ctx, func(ctx context.Context) error { return c.store.Delete(ctx, entries[0].Key) })
		if err == nil {
			c.log.Warn("etcd has no space left: the key that was revoked is removed, and is not listed any more", slog.String("id", key.GetId()))
		}
	}
	if err != nil {
		return "", fmt.Errorf("revoke key: %w", err)
	}
	return key.GetId(), nil
}

func (c *Client) keyEntries(ctx context.Context, id string) ([]Entry, error) {
	listing, err := answer(ctx, c, c.store.List, keysPrefix+id)
	return listing.Entries, err
}

// putKey writes a key that etcd removes after a time; 0: never.
func (c *Client) putKey(ctx context.Context, key *controlv1.ApiKey, keep time.Duration, ifRevision int64) error {
	value, err := protojson.Marshal(key)
	if err != nil {
		return fmt.Errorf("keep key: %w", err)
	}
	var lease int64
	if keep > 0 {
		err = c.bounded(ctx, func(ctx context.Context) (err error) {
			lease, _, err = c.leases.Grant(ctx, keep)
			return err
		})
		if err != nil {
			return err
		}
	}
	err = c.bounded(ctx, func(ctx context.Context) error {
		_, err := c.store.Put(ctx, keysPrefix+key.GetId(), value, lease, ifRevision)
		return err
	})
	if err != nil && lease != 0 { // it is of no use: if it cannot be revoked now, it expires by itself
		_ = c.bounded(context.WithoutCancel(ctx), func(ctx context.Context) error { return c.leases.Revoke(ctx, lease) })
	}
	return err
}
