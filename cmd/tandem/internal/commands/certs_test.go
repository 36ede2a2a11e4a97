package commands_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/identity"
)

func TestCerts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	got := run(t.Context(), "", nil, "certs", "--dir", dir, "--json")
	var made struct {
		CA           string `json:"ca"`
		Certificates []struct{ Name, Identity, Cert, Key string }
	}
	if got.status != 0 || json.Unmarshal([]byte(got.stdout), &made) != nil || len(made.Certificates) != 7 {
		t.Fatalf("%+v", got)
	}
	ca, err := os.ReadFile(made.CA)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range made.Certificates {
		source, err := identity.Open(identity.Config{CertFile: c.Cert, KeyFile: c.Key, CAFile: made.CA}, nil)
		if err != nil {
			t.Fatal(err)
		}
		who, known := source.Identity()
		switch {
		case c.Name == "etcd" || c.Name == "nats":
			if known || c.Identity != "" {
				t.Errorf("%s is %s", c.Name, who)
			}
		case !known || string(who.Role) != c.Name || who.Name != c.Name || c.Identity != "spiffe://tandem/"+c.Name+"/"+c.Name:
			t.Errorf("%s is %s by %q", c.Name, who, c.Identity)
		}
		leaf := source.Certificate().Leaf
		for _, host := range []string{c.Name, "localhost", "127.0.0.1", "::1"} {
			if err := leaf.VerifyHostname(host); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
	// Another call has the same authority.
	got = run(t.Context(), "", nil, "certs", "--dir", dir, "--host", "example.com", "--key-mode", "0644", "prefill/prefill-7", "operator")
	again, err := os.ReadFile(made.CA)
	if got.status != 0 || err != nil || !bytes.Equal(again, ca) || !strings.Contains(got.stdout, "spiffe://tandem/prefill/prefill-7") {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "prefill-7", "tls.key")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	for _, wrong := range [][]string{{"king/x"}, {"prefill/"}, {"prefill/../x"}, {"prefill/node7", "decode/node7"}, {"etcd", "etcd"}, {"ca.key"}, {"--key-mode", "9"}, {"--lifetime", "1s"}} {
		if got := run(t.Context(), "", nil, append([]string{"certs", "--dir", dir}, wrong...)...); got.status != 2 {
			t.Errorf("%v: %+v", wrong, got)
		}
	}
}

// A name that is none of a role is a server's, unless it is spelled like a role's.
func TestCertsOfServers(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"init"}, 0, "a server's: no part of the mesh"},
		{[]string{"gateway", "--host", "rooter"}, 0, "a server's: no part of the mesh"},
		{[]string{"rooter"}, 2, `"rooter" is no role: did you mean router, or router/NAME for one part?`},
		{[]string{"prefill-7"}, 2, `did you mean prefill, or prefill/NAME for one part?`},
		{[]string{"decode/rooter"}, 0, "spiffe://tandem/decode/rooter"},
	} {
		got := run(t.Context(), "", nil, append([]string{"certs", "--dir", dir}, c.args...)...)
		if got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.want) {
			t.Errorf("%v: %+v, want %d and %q", c.args, got, c.status, c.want)
		}
	}
}

// TestUpTLSSaysHow: what 'up --tls' says to try names the files.
func TestUpTLSSaysHow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	said := untilReady(t, "up", "--tls", "--certs="+dir, "--engine=simulated", "--model=../../../../models/fable",
		"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--control=127.0.0.1:0", "--metrics=")
	for _, want := range []string{
		"certs     " + dir, "https://127.0.0.1:", " --ca " + dir + "/ca.crt --prompt", " --cert " + dir + "/operator/tls.crt",
		"etcd      https://", "nats      tls://",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it lacks %q:\n%s", want, said)
		}
	}
	got := run(t.Context(), "", nil, "up", "--certs="+dir)
	checkFailure(t, got, 2, "--certs: is the folder of --tls")
}

// TestClientsOfTLS: the commands say what is wrong with the encryption.
func TestClientsOfTLS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if got := run(t.Context(), "", nil, "certs", "--dir", dir); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	ca, cert := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "operator", "tls.crt")
	plain := (&fakeRouter{}).start(t)
	checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--addr", plain, "--ca", ca), 1, "the server does not encrypt its connections")
	checkFailure(t, run(t.Context(), "", nil, "workers", "--control", plain, "--cert", cert), 2, "--cert: needs --ca")
	for _, args := range [][]string{{"generate", "--json", "--prompt=x"}, {"bench", "serve", "--rate=1"}, {"bench", "overload", "--slo=ttft:p90<1s"}} {
		got := run(t.Context(), "", nil, append(args, "--addr", plain, "--cert", cert)...)
		checkFailure(t, got, 2, "--cert: needs --ca")
		if got.stdout != "" || strings.Count(got.stderr, "see '") != 1 {
			t.Errorf("%v: %+v, want one hint and no result", args, got)
		}
	}
	checkFailure(t, run(t.Context(), "", nil, "workers", "--control", plain, "--ca", filepath.Join(dir, "none")), 2, "--ca: ")
}
