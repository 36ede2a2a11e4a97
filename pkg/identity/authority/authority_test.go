package authority_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
)

func TestIssue(t *testing.T) {
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	who := identity.Identity{Role: identity.Prefill, Name: "prefill-1"}
	part := filepath.Join(folder, "prefill-1")
	if err := a.Issue(part, authority.Request{Identity: who, Hosts: []string{"localhost", "127.0.0.1"}}, 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := identity.Open(authority.Config(part), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := source.Identity(); !ok || got != who {
		t.Errorf("the certificate is that of %v %v", got, ok)
	}
	for _, key := range []string{"ca.key", "prefill-1/tls.key"} {
		if info, err := os.Stat(filepath.Join(folder, key)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", key, info, err)
		}
	}
	again, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.PEM(), a.PEM()) {
		t.Error("a second start has another authority")
	}
	if err := os.Remove(filepath.Join(folder, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Open(folder); err == nil {
		t.Error("an authority without its key was replaced")
	}
}

// A server's certificate is no client's, also where an earlier one was.
func TestServerOnly(t *testing.T) {
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM())
	for _, only := range []bool{false, true} {
		nats := filepath.Join(folder, "nats")
		if err := a.Renew(nats, authority.Request{CommonName: "nats", ServerOnly: only, Hosts: []string{"127.0.0.1"}}, 0o600); err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(nats, authority.CertFile), filepath.Join(nats, authority.KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		for usage, allowed := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageServerAuth: true, x509.ExtKeyUsageClientAuth: !only} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); (err == nil) != allowed {
				t.Errorf("a server's alone: %v, usage %d: %v", only, usage, err)
			}
		}
	}
}
