// Package authoritytest has certificates for tests, which alone import it. It starts no
// goroutines.
package authoritytest

import (
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
)

// Parts are the files of a new authority's certificates by role, and of the servers etcd and nats.
func Parts(t testing.TB) func(name string) identity.Config {
	t.Helper()
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range identity.Roles() {
		if err := a.Issue(filepath.Join(folder, string(role)), authority.Request{Identity: identity.Identity{Role: role, Name: string(role)}}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etcd", "nats"} {
		if err := a.Issue(filepath.Join(folder, name), authority.Request{CommonName: name, ServerOnly: name == "nats", Hosts: []string{"127.0.0.1"}}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) identity.Config { return authority.Config(filepath.Join(folder, name)) }
}
