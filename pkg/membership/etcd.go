package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
	"github.com/tandem-serving/tandem/pkg/identity"
)

const (
	// dialKeepAlive and dialKeepAliveTimeout find a connection that is silently
	// broken; a stuck watch would otherwise stay stuck.
	dialKeepAlive        = 10 * time.Second
	dialKeepAliveTimeout = 3 * time.Second
)

// etcd is a Store and Leases on a real etcd.
type etcd struct {
	client *clientv3.Client
}

// newEtcd makes a client, which connects when it is used. Without the back-off
// given here grpc-go would wait up to two minutes before it looks whether etcd
// is back. The etcd client's own logger repeats each failed call; what matters
// is logged by this package.
func newEtcd(cfg Config, log *slog.Logger) (*etcd, error) {
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: .2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
	}
	if slices.ContainsFunc(cfg.Endpoints, func(endpoint string) bool { return strings.HasPrefix(endpoint, "https:") }) {
		source, err := identity.Open(cfg.TLS, log)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(source.Client()))
	}
	var password string
	if cfg.PasswordFile != "" {
		var err error
		if password, err = boundedfile.ReadSecret(cfg.PasswordFile); err != nil {
			return nil, fmt.Errorf("--etcd-password-file: %w", err)
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          cfg.RequestTimeout,
		DialKeepAliveTime:    dialKeepAlive,
		DialKeepAliveTimeout: dialKeepAliveTimeout,
		Username:             cfg.Username,
		Password:             password,
		Logger:               zap.NewNop(),
		MaxCallRecvMsgSize:   maxAnswerBytes,
		DialOptions:          options,
	})
	if err != nil {
		return nil, err
	}
	return &etcd{client: client}, nil
}

func (e *etcd) Get(ctx context.Context, key string) (Entry, error) {
	response, err := e.client.Get(ctx, key)
	if err != nil {
		return Entry{}, fmt.Errorf("read %s: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return Entry{}, nil
	}
	return entryOf(response.Kvs[0]), nil
}

// Keys of one answer to List. With the largest value that etcd takes by default,
// 1.5 MiB, the fewest fit into maxAnswerBytes.
const (
	pageKeys       = 2048
	pageKeysLeast  = 16
	maxAnswerBytes = 32 << 20
)

// List asks for pages: an answer must not take all memory.
func (e *etcd) List(ctx context.Context, prefix string) (Listing, error) {
	var listing Listing
	from, end, keys, bytes := prefix, clientv3.GetPrefixRangeEnd(prefix), pageKeys, 0
	for {
		response, err := e.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(keys)), clientv3.WithRev(listing.Revision))
		if status.Code(err) == codes.ResourceExhausted && keys > pageKeysLeast {
			keys = max(keys/4, pageKeysLeast)
			continue
		}
		if err != nil {
			return Listing{}, fmt.Errorf("list %s: %w", prefix, err)
		}
		if listing.Revision == 0 {
			listing.Revision = response.Header.GetRevision()
		}
		for _, kv := range response.Kvs {
			entry := entryOf(kv)
			if bytes += len(entry.Key); len(entry.Value) <= maxValueBytes {
				bytes += len(entry.Value)
			}
			listing.Entries = append(listing.Entries, entry)
		}
		if len(listing.Entries) > maxKeys || bytes > maxListedBytes {
			return Listing{}, fmt.Errorf("list %s: there are more than %d keys or %d MiB: remove keys that belong to no worker", prefix, maxKeys, maxListedBytes>>20)
		}
		if !response.More || len(response.Kvs) == 0 {
			return listing, nil
		}
		from = string(response.Kvs[len(response.Kvs)-1].Key) + "\x00"
	}
}

func (e *etcd) Summary(ctx context.Context, prefix string) (Summary, error) {
	response, err := e.client.Get(ctx, prefix, append(clientv3.WithLastRev(), clientv3.WithPrefix(), clientv3.WithKeysOnly())...)
	if err != nil {
		return Summary{}, fmt.Errorf("read %s: %w", prefix, err)
	}
	summary := Summary{Count: int(response.Count), Revision: response.Header.GetRevision()}
	if len(response.Kvs) > 0 {
		summary.Newest = response.Kvs[0].GetModRevision()
	}
	return summary, nil
}

func (e *etcd) Put(ctx context.Context, key string, value []byte, lease, ifRevision int64) (int64, error) {
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(lease)))
	transaction := e.client.Txn(ctx)
	if ifRevision != AnyRevision {
		transaction = transaction.If(clientv3.Compare(clientv3.ModRevision(key), "=", ifRevision))
	}
	response, err := transaction.Then(put).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, fmt.Errorf("write %s: %w", key, ErrLeaseNotFound)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return 0, fmt.Errorf("write %s: %w", key, ErrNoSpace)
	case err != nil:
		return 0, fmt.Errorf("write %s: %w", key, err)
	case !response.Succeeded:
		return 0, fmt.Errorf("write %s: %w", key, ErrConflict)
	}
	return response.Header.GetRevision(), nil
}

func (e *etcd) Delete(ctx context.Context, key string) error {
	if _, err := e.client.Delete(ctx, key); err != nil {
		return fmt.Errorf("remove %s: %w", key, err)
	}
	return nil
}

func (e *etcd) Watch(ctx context.Context, prefix string, afterRevision int64) <-chan Batch {
	// The watch must fail, not stay silent, where etcd has no leader.
	responses := e.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(afterRevision+1), clientv3.WithFragment())
	batches := make(chan Batch)
	go func() {
		defer close(batches)
		for response := range responses {
			batch := Batch{Err: response.Err(), Revision: response.Header.GetRevision()}
			for _, event := range response.Events {
				batch.Events = append(batch.Events, Event{Entry: entryOf(event.Kv), Removed: event.Type == clientv3.EventTypeDelete})
			}
			select {
			case batches <- batch:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches
}

// tooLong stands for values that are, so that they take no memory.
var tooLong = make([]byte, maxValueBytes+1)

func entryOf(kv *mvccpb.KeyValue) Entry {
	entry := Entry{Key: string(kv.GetKey()), Value: kv.GetValue(), Revision: kv.GetModRevision(), Created: kv.GetCreateRevision(), Lease: kv.GetLease()}
	if len(entry.Value) > maxValueBytes {
		entry.Value = tooLong
	}
	return entry
}

func (e *etcd) Grant(ctx context.Context, ttl time.Duration) (int64, time.Duration, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	response, err := e.client.Grant(ctx, seconds)
	if errors.Is(err, rpctypes.ErrNoSpace) {
		err = ErrNoSpace
	}
	if err != nil {
		return 0, 0, fmt.Errorf("get a lease: %w", err)
	}
	return int64(response.ID), time.Duration(response.TTL) * time.Second, nil
}

func (e *etcd) Renew(ctx context.Context, lease int64) (time.Duration, error) {
	response, err := e.client.KeepAliveOnce(ctx, clientv3.LeaseID(lease))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, ErrLeaseNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("renew the lease: %w", err)
	}
	return time.Duration(response.TTL) * time.Second, nil
}

func (e *etcd) Revoke(ctx context.Context, lease int64) error {
	_, err := e.client.Revoke(ctx, clientv3.LeaseID(lease))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke the lease: %w", err)
	}
	return nil
}

func (e *etcd) Close() error {
	if err := e.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}
