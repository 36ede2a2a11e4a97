package integration_test

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// TestKeysOfAFullEtcd: an etcd that is out of space lets no key be made, but revoked.
func TestKeysOfAFullEtcd(t *testing.T) {
	t.Parallel() // much of it is waiting
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	etcd, err := embedded.StartEtcd(ctx, embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	members, err := membership.Connect(ctx, membership.Config{Endpoints: []string{etcd.Endpoint()}}, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = members.Close() }()
	if err := members.CreateKey(ctx, &controlv1.ApiKey{Id: "aaaa"}); err != nil {
		t.Fatal(err)
	}
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	_, err = etcdserverpb.NewMaintenanceClient(admin.ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := members.CreateKey(ctx, &controlv1.ApiKey{Id: "bbbb"}); !errors.Is(err, membership.ErrNoSpace) {
		t.Errorf("create: %v", err)
	}
	if id, err := members.RevokeKey(ctx, "aaaa"); err != nil || id != "aaaa" {
		t.Errorf("revoke: %q, %v", id, err)
	}
	if keys, err := members.ListKeys(ctx); err != nil || len(keys) != 0 {
		t.Errorf("keys: %v, %v", keys, err)
	}
}
