package integration_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority/authoritytest"
	"github.com/tandem-serving/tandem/pkg/membership"
)

// TestEtcdRights: once 'tandem etcd-auth' was called, each role writes its own keys and no others.
func TestEtcdRights(t *testing.T) {
	t.Parallel() // much of it is waiting
	certs := authoritytest.Parts(t)
	etcd, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir(), TLS: certs("etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	operator := membership.Config{Endpoints: []string{etcd.Endpoint()}, TLS: certs("operator")}
	connect := func(role string) *clientv3.Client {
		source, err := identity.Open(certs(role), nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, TLS: source.ClientTLS(), DialTimeout: timeout, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	set := func() {
		t.Helper()
		if err := membership.SetRights(ctx, operator, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	set()
	// Called again, it takes away what a role has besides, and no right that the role keeps.
	admin := connect("operator")
	_, err = admin.RoleGrantPermission(ctx, "router", "/other", "", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err2 := admin.UserGrantRole(ctx, "decode", "root")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	router := connect("router")
	read := func() error {
		_, err := router.Get(ctx, "/tandem/v1/keys/x")
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			// One that is under way at a change may fail for that.
			if err := read(); err != nil && !errors.Is(err, rpctypes.ErrAuthOldRevision) {
				t.Errorf("a router reads while the rights are set again: %v", err)
				return
			}
		}
	})
	set()
	close(ended)
	reading.Wait()
	const workers = "/tandem/v1/workers/"
	for _, c := range []struct {
		role         string
		write, never []string
		read, hidden string
	}{
		{"prefill", []string{workers + "prefill/x"}, []string{workers + "decode/x", workers + "router/x", "/tandem/v1/policy", "/tandem/v1/keys/x", "/other"}, workers + "decode/x", "/tandem/v1/keys/x"},
		{"decode", []string{workers + "decode/x"}, []string{workers + "prefill/x", "/tandem/v1/policy", "/other"}, workers + "prefill/x", "/tandem/v1/keys/x"},
		{"kvtransfer", []string{workers + "kvtransfer/x"}, []string{workers + "prefill/x"}, workers + "prefill/x", "/other"},
		{"router", []string{workers + "router/x", "/tandem/v1/policy", "/tandem/v1/keys/x"}, []string{workers + "prefill/x", "/other"}, "/tandem/v1/keys/x", "/other"},
		{"operator", []string{"/tandem/v1/policy", "/other"}, nil, "/other", ""},
		{"etcd", nil, []string{workers + "prefill/x"}, "", workers + "prefill/x"},
	} {
		client := connect(c.role)
		for _, key := range c.write {
			if _, err := client.Put(ctx, key, "x"); err != nil {
				t.Errorf("%s writes %s: %v", c.role, key, err)
			}
		}
		for _, key := range c.never {
			if _, err := client.Put(ctx, key, "x"); err == nil {
				t.Errorf("%s may write %s", c.role, key)
			}
		}
		if c.read != "" {
			if _, err := client.Get(ctx, c.read); err != nil {
				t.Errorf("%s reads %s: %v", c.role, c.read, err)
			}
		}
		if c.hidden != "" {
			if _, err := client.Get(ctx, c.hidden); err == nil {
				t.Errorf("%s may read %s", c.role, c.hidden)
			}
		}
	}
	// A part finds its way with these rights.
	for _, role := range []string{"router", "prefill"} {
		members, err := membership.Connect(ctx, membership.Config{Endpoints: []string{etcd.Endpoint()}, TLS: certs(role)}, testLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		seen, stop := context.WithCancel(ctx)
		if err := members.Watch(seen, func(membership.View) { stop() }); err != nil && ctx.Err() != nil {
			t.Errorf("%s sees no workers: %v", role, err)
		}
		_ = members.Close()
		stop()
	}
}
