package integration_test

import (
	"context"
	"log/slog"
	"testing"

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
	for range 2 { // it may be called again
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := membership.SetRights(ctx, operator, slog.New(slog.DiscardHandler))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	const workers = "/tandem/v1/workers/"
	for _, c := range []struct {
		role         string
		write, never []string
		read, hidden string
	}{
		{"prefill", []string{workers + "prefill/x"}, []string{workers + "decode/x", workers + "router/x", "/tandem/v1/policy", "/tandem/v1/keys/x", "/other"}, workers + "decode/x", "/tandem/v1/keys/x"},
		{"decode", []string{workers + "decode/x"}, []string{workers + "prefill/x", "/tandem/v1/policy"}, workers + "prefill/x", "/tandem/v1/keys/x"},
		{"kvtransfer", []string{workers + "kvtransfer/x"}, []string{workers + "prefill/x"}, workers + "prefill/x", "/other"},
		{"router", []string{workers + "router/x", "/tandem/v1/policy", "/tandem/v1/keys/x"}, []string{workers + "prefill/x", "/other"}, "/tandem/v1/keys/x", "/other"},
		{"operator", []string{"/tandem/v1/policy", "/other"}, nil, "/other", ""},
		{"nats", nil, []string{workers + "prefill/x"}, "", workers + "prefill/x"},
	} {
		source, err := identity.Open(certs(c.role), nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, TLS: source.ClientTLS(), DialTimeout: timeout, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
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
		cancel()
		_ = client.Close()
	}
	// A part finds its way with these rights.
	for _, role := range []string{"router", "prefill"} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
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
		cancel()
	}
}
