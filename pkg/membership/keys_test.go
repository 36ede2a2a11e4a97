package membership_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/membership/membershiptest"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// keysSeen is what a watch has told last: the keys that are not revoked, by id.
type keysSeen struct {
	mu    sync.Mutex
	valid map[string]bool
}

func (k *keysSeen) take(keys []*controlv1.ApiKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.valid = map[string]bool{}
	for _, key := range keys {
		k.valid[key.GetId()] = key.GetRevoked() == nil
	}
}

func (k *keysSeen) is(id string) (valid, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	valid, known = k.valid[id]
	return valid, known
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membershiptest.NewStore()
		client := membership.New(store, store, membership.Config{Endpoints: []string{"http://etcd"}}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var seen keysSeen
		var wait sync.WaitGroup
		wait.Go(func() { _ = client.WatchKeys(ctx, seen.take) })
		defer wait.Wait()
		defer cancel()
		synctest.Wait()
		at := func(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: seconds} }
		for i, id := range []string{"aaaa", "aabb", "cccc"} {
			if err := client.CreateKey(ctx, &controlv1.ApiKey{Id: id, Created: at(int64(10 - i))}); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.CreateKey(ctx, &controlv1.ApiKey{Id: "ffee", Created: at(11), Expires: timestamppb.New(time.Now().Add(time.Hour))}); err != nil {
			t.Fatal(err)
		}
		if err := client.CreateKey(ctx, &controlv1.ApiKey{Id: "cccc"}); !errors.Is(err, membership.ErrKeyExists) {
			t.Errorf("the same id again: %v", err)
		}
		if list, err := client.ListKeys(ctx); err != nil || len(list) != 4 || list[0].GetId() != "cccc" {
			t.Errorf("%v, %v", list, err)
		}
		for id, want := range map[string]bool{"aa": false, "": false, "bb": false, "aabb": true, "aabb0": false} {
			whole, err := client.RevokeKey(ctx, id)
			if ok := err == nil; ok != want || !ok && !errors.Is(err, membership.ErrNoKey) || ok && whole != id {
				t.Errorf("revoke %q: %q, %v", id, whole, err)
			}
		}
		<-time.After(200 * time.Millisecond) // soon enough for all routers
		if valid, known := seen.is("aabb"); valid || !known {
			t.Errorf("a revoked key is seen as valid: %t, known: %t", valid, known)
		}
		store.Set("/tandem/v1/keys/dddd", "not a key")
		store.Set("/tandem/v1/keys/eeee", `{"id":"ffff"}`)
		store.Down()
		<-time.After(time.Minute)
		if valid, _ := seen.is("cccc"); !valid {
			t.Error("without etcd a key is forgotten")
		}
		store.Up()
		<-time.After(10 * time.Second)
		for _, id := range []string{"dddd", "eeee", "ffff"} {
			if _, known := seen.is(id); known {
				t.Errorf("%s is malformed and is taken", id)
			}
		}
		<-time.After(31 * 24 * time.Hour)
		if _, known := seen.is("aabb"); known {
			t.Error("a revoked key is kept for ever")
		}
		if _, known := seen.is("ffee"); known {
			t.Error("a key that has expired is kept for ever")
		}
		if valid, _ := seen.is("aaaa"); !valid {
			t.Error("a key that is valid is forgotten")
		}
	})
}

// A key that is not kept leaves no lease behind.
func TestKeyNotKeptHasNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membershiptest.NewStore()
		client := membership.New(store, store, membership.Config{Endpoints: []string{"http://etcd"}}, slog.New(slog.DiscardHandler))
		key := &controlv1.ApiKey{Id: "aaaa", Expires: timestamppb.New(time.Now().Add(time.Hour))}
		if err := client.CreateKey(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if err := client.CreateKey(t.Context(), key); !errors.Is(err, membership.ErrKeyExists) {
			t.Errorf("the same id again: %v", err)
		}
		if leases := store.Leases(); leases != 1 {
			t.Errorf("%d leases live, of one key", leases)
		}
	})
}

// Without etcd a key is neither listed nor revoked, and the error says what to do; an etcd that is full
// lets it be revoked.
func TestKeysOfAnEtcdInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membershiptest.NewStore()
		client := membership.New(store, store, membership.Config{Endpoints: []string{"http://etcd"}}, slog.New(slog.DiscardHandler))
		if err := client.CreateKey(t.Context(), &controlv1.ApiKey{Id: "aaaa"}); err != nil {
			t.Fatal(err)
		}
		store.Down()
		_, listed := client.ListKeys(t.Context())
		_, revoked := client.RevokeKey(t.Context(), "aaaa")
		created := client.CreateKey(t.Context(), &controlv1.ApiKey{Id: "bbbb"})
		for _, err := range []error{listed, revoked, created} {
			if err == nil || !strings.HasSuffix(err.Error(), "etcd does not answer: try again once it does") || strings.Contains(err.Error(), "deadline") {
				t.Errorf("without etcd: %v", err)
			}
		}
		store.Up()
		store.Fill()
		if err := client.CreateKey(t.Context(), &controlv1.ApiKey{Id: "bbbb"}); !errors.Is(err, membership.ErrNoSpace) {
			t.Errorf("create in a full etcd: %v", err)
		}
		if id, err := client.RevokeKey(t.Context(), "aa"); err != nil || id != "aaaa" {
			t.Errorf("revoke in a full etcd: %q, %v", id, err)
		}
		if list, err := client.ListKeys(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("the key is still there: %v, %v", list, err)
		}
	})
}

// A key that is revoked right before etcd goes away is known to be.
func TestKeyRevokedBeforeAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membershiptest.NewStore()
		client := membership.New(store, store, membership.Config{Endpoints: []string{"http://etcd"}}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var seen keysSeen
		var wait sync.WaitGroup
		wait.Go(func() { _ = client.WatchKeys(ctx, seen.take) })
		defer wait.Wait()
		defer cancel()
		if err := client.CreateKey(ctx, &controlv1.ApiKey{Id: "aaaa"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		for _, id := range []string{"bbbb", "cccc"} { // the watch does not tell of the second at once
			if err := client.CreateKey(ctx, &controlv1.ApiKey{Id: id}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if _, err := client.RevokeKey(ctx, "aaaa"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		store.Set("/elsewhere", "")
		store.Compact() // which ends the watch
		synctest.Wait()
		store.Down()
		<-time.After(time.Minute)
		if valid, known := seen.is("aaaa"); valid || !known {
			t.Errorf("without etcd the key is seen as valid: %t, known: %t", valid, known)
		}
	})
}

// Of too many keys routers would hear nothing any more, not even that one is revoked.
func TestTooManyKeysAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membershiptest.NewStore()
		client := membership.New(store, store, membership.Config{Endpoints: []string{"http://etcd"}}, slog.New(slog.DiscardHandler))
		for i := range membership.MaxKeys - 1 {
			store.Set(fmt.Sprintf("/tandem/v1/keys/%08x", i), "{}")
		}
		if err := client.CreateKey(t.Context(), &controlv1.ApiKey{Id: "aaaa"}); err != nil {
			t.Errorf("the last one: %v", err)
		}
		if err := client.CreateKey(t.Context(), &controlv1.ApiKey{Id: "bbbb"}); !errors.Is(err, membership.ErrTooManyKeys) {
			t.Errorf("one more: %v", err)
		}
	})
}
