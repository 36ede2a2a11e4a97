package identity_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
)

func certificate(cn string, dns []string, uris ...string) *x509.Certificate {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: dns}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		c.URIs = append(c.URIs, uri)
	}
	return c
}

func TestRules(t *testing.T) {
	rules := identity.Rules{TrustDomain: "tandem"}
	for _, text := range []string{"prefill=*.prefill.example.com", "decode=spiffe://cluster.local/ns/tandem/sa/decode*", "operator=alice"} {
		rule, err := identity.ParseNameRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules.Names = append(rules.Names, rule)
	}
	for _, c := range []struct {
		name string
		cert *x509.Certificate
		want string // empty: nobody
	}{
		{"an id", certificate("", nil, "spiffe://tandem/router/router-1"), "router/router-1"},
		{"an id wins over a rule", certificate("alice", []string{"a.prefill.example.com"}, "spiffe://tandem/decode/d"), "decode/d"},
		{"another trust domain", certificate("", nil, "spiffe://elsewhere/router/router-1"), ""},
		{"a role that there is not", certificate("", nil, "spiffe://tandem/king/k"), ""},
		{"no name", certificate("", nil, "spiffe://tandem/router/"), ""},
		{"a name with a slash", certificate("", nil, "spiffe://tandem/router/a/b"), ""},
		{"a star for a name", certificate("", nil, "spiffe://tandem/router/*"), ""},
		{"two ids", certificate("", nil, "spiffe://tandem/router/a", "spiffe://tandem/decode/b"), ""},
		{"a DNS name", certificate("", []string{"p-1.prefill.example.com"}), "prefill/p-1"},
		{"a longer DNS name", certificate("", []string{"p-1.prefill.example.com.evil.org"}), ""},
		{"a URI of another scheme of ids", certificate("", nil, "spiffe://cluster.local/ns/tandem/sa/decode-gpu"), "decode/decode-gpu"},
		{"a common name", certificate("alice", nil), "operator/alice"},
		{"a common name beside a DNS name", certificate("alice", []string{"example.com"}), ""},
		{"another common name", certificate("mallory", nil), ""},
		{"nothing", certificate("", nil), ""},
	} {
		got, ok := rules.Identity(c.cert)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s: %v %v, want %q", c.name, got, ok, c.want)
		}
	}
	for _, wrong := range []string{"", "prefill", "prefill=", "king=x", "prefill=[a"} {
		if _, err := identity.ParseNameRule(wrong); err == nil {
			t.Errorf("rule %q was taken", wrong)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		name, id string
		want     bool
	}{
		{"decode-1", "decode-1", true},
		{"decode", "decode-host-7f", true},
		{"decode-1", "decode-10", false},
		{"decode-1", "decode", false},
		{"", "decode", false},
	} {
		if got := (identity.Identity{Role: identity.Decode, Name: c.name}).Covers(identity.Decode, c.id); got != c.want {
			t.Errorf("%q covers %q: %v", c.name, c.id, got)
		}
	}
	if (identity.Identity{Role: identity.Prefill, Name: "a"}).Covers(identity.Decode, "a") {
		t.Error("another role is covered")
	}
}

func FuzzRules(f *testing.F) {
	f.Add("spiffe://tandem/router/a", "a.example.com", "*.example.com")
	f.Fuzz(func(t *testing.T, uri, dns, pattern string) {
		parsed, err := url.Parse(uri)
		if err != nil {
			return
		}
		rules := identity.Rules{TrustDomain: "tandem"}
		if rule, err := identity.ParseNameRule("prefill=" + pattern); err == nil {
			rules.Names = append(rules.Names, rule)
		}
		got, ok := rules.Identity(&x509.Certificate{URIs: []*url.URL{parsed}, DNSNames: []string{dns}})
		if ok && (got.Name == "" || strings.ContainsAny(got.Name, "/* \n") || len(got.Name) > 253) {
			t.Errorf("%q and %q stand for %q", uri, dns, got)
		}
	})
}

// files are certificates of a new authority by name.
type files struct {
	*authority.Authority
	t      *testing.T
	folder string
}

func newFiles(t *testing.T) files {
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	return files{a, t, folder}
}

func (f files) issue(name string, r authority.Request) identity.Config {
	f.t.Helper()
	folder := filepath.Join(f.folder, name)
	if err := f.Issue(folder, r, 0o600); err != nil {
		f.t.Fatal(err)
	}
	return authority.Config(folder)
}

func (f files) source(role identity.Role) *identity.Source {
	f.t.Helper()
	return open(f.t, f.issue(string(role), authority.Request{Identity: identity.Identity{Role: role, Name: string(role) + "-1"}, Hosts: []string{"localhost", "127.0.0.1"}}))
}

func open(t *testing.T, cfg identity.Config) *identity.Source {
	t.Helper()
	source, err := identity.Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// connect shakes hands over a socket. What the server found out about the client is "none" where
// that is nobody; an error is that of either side.
func connect(t *testing.T, server, client credentials.TransportCredentials, name string) (string, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	type outcome struct {
		who string
		err error
	}
	served := make(chan outcome, 1)
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			served <- outcome{"", err}
			return
		}
		defer raw.Close()
		conn, info, err := server.ServerHandshake(raw)
		if err != nil {
			served <- outcome{"", err}
			return
		}
		defer conn.Close()
		who := "none"
		if found, ok := identity.FromContext(peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info})); ok {
			who = found.String()
		}
		_, err = conn.Write([]byte("x"))
		served <- outcome{who, err}
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn, _, err := client.ClientHandshake(t.Context(), name, raw)
	if err == nil {
		defer conn.Close()
		_, err = io.ReadFull(conn, make([]byte, 1)) // TLS 1.3 refuses a client after its handshake
	} else {
		_ = raw.Close()
	}
	got := <-served
	if err == nil {
		err = got.err
	}
	return got.who, err
}

func TestHandshake(t *testing.T) {
	ours, theirs := newFiles(t), newFiles(t)
	decode, prefill, router := ours.source(identity.Decode), ours.source(identity.Prefill), ours.source(identity.Router)
	past := authority.Request{Identity: identity.Identity{Role: identity.Prefill, Name: "prefill-1"}, NotBefore: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour}
	nobody := ours.issue("nobody", authority.Request{CommonName: "nobody"})
	mixed := theirs.issue("mixed", authority.Request{Identity: identity.Identity{Role: identity.Prefill, Name: "prefill-1"}})
	mixed.CAFile = filepath.Join(ours.folder, "ca.crt") // believes ours, but is not believed
	bare := identity.Config{CAFile: filepath.Join(ours.folder, "ca.crt")}
	for _, c := range []struct {
		name   string
		server credentials.TransportCredentials
		client credentials.TransportCredentials
		host   string
		want   string // who the server sees; empty: refused
	}{
		{"a member", decode.Server(true), prefill.Peer(identity.Decode), "10.1.2.3:1", "prefill/prefill-1"},
		{"without a certificate", decode.Server(true), open(t, bare).Client(), "localhost:1", ""},
		{"of nobody", decode.Server(true), open(t, nobody).Peer(identity.Decode), "localhost:1", ""},
		{"of another authority", decode.Server(true), open(t, mixed).Peer(identity.Decode), "localhost:1", ""},
		{"expired", decode.Server(true), open(t, ours.issue("expired", past)).Peer(identity.Decode), "localhost:1", ""},
		{"a server of another role", decode.Server(true), prefill.Peer(identity.KVTransfer, identity.Router), "localhost:1", ""},
		{"a server of another authority", decode.Server(true), theirs.source(identity.Prefill).Peer(identity.Decode), "localhost:1", ""},
		{"an expired server", open(t, ours.issue("old", past)).Server(true), decode.Peer(identity.Prefill), "localhost:1", ""},
		{"a client", router.Server(false), open(t, bare).Client(), "localhost:1", "none"},
		{"a client by address", router.Server(false), open(t, bare).Client(), "127.0.0.1:1", "none"},
		{"a client of another name", router.Server(false), open(t, bare).Client(), "example.com:1", ""},
		{"a client of another address", router.Server(false), open(t, bare).Client(), "10.0.0.1:1", ""},
		{"a client with a wrong certificate", router.Server(false), open(t, mixed).Client(), "localhost:1", ""},
		{"a client that is known", router.Server(false), prefill.Client(), "localhost:1", "prefill/prefill-1"},
	} {
		got, err := connect(t, c.server, c.client, c.host)
		if (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// What is replaced on disk is used by the next connection, and half of it is not.
func TestReload(t *testing.T) {
	f := newFiles(t)
	who := authority.Request{Identity: identity.Identity{Role: identity.Decode, Name: "decode-1"}}
	cfg := f.issue("decode", who)
	source := open(t, cfg)
	first := source.Certificate().Leaf.SerialNumber
	identity.Forget(source)
	if source.Certificate().Leaf.SerialNumber.Cmp(first) != 0 {
		t.Error("another certificate than before, though nothing changed")
	}
	other := f.issue("other", who)
	replace := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	replace(other.KeyFile, cfg.KeyFile) // its certificate is still to come
	identity.Forget(source)
	if source.Certificate().Leaf.SerialNumber.Cmp(first) != 0 {
		t.Error("a key without its certificate was used")
	}
	replace(other.CertFile, cfg.CertFile)
	identity.Forget(source)
	if source.Certificate().Leaf.SerialNumber.Cmp(first) == 0 {
		t.Error("the new certificate is not used")
	}
	// A bundle with a second authority.
	second := newFiles(t)
	bundle := append(append([]byte{}, f.PEM()...), second.PEM()...)
	if err := os.WriteFile(cfg.CAFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	identity.Forget(source)
	stranger := second.source(identity.Router)
	if who, err := connect(t, source.Server(true), both(t, stranger, f).Peer(identity.Decode), "localhost:1"); err != nil || who != "router/router-1" {
		t.Errorf("the second authority's: %q, %v", who, err)
	}
	if err := os.WriteFile(cfg.CAFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	identity.Forget(source)
	if source.Authorities() == nil || source.Certificate().Leaf == nil {
		t.Error("an empty file was used")
	}
}

// What is put in a certificate's place is used only if it is the part's own and valid.
func TestReplacedBySomebodyElses(t *testing.T) {
	f := newFiles(t)
	of := func(role identity.Role, name string) authority.Request {
		return authority.Request{Identity: identity.Identity{Role: role, Name: name}}
	}
	expired := of(identity.Decode, "decode-1")
	expired.NotBefore, expired.Lifetime = time.Now().Add(-2*time.Hour), time.Hour
	early := of(identity.Decode, "decode-1")
	early.NotBefore = time.Now().Add(time.Hour)
	for _, c := range []struct {
		name    string
		belongs string // to the decode worker with this id; empty: it is not said
		request authority.Request
		used    bool
	}{
		{"its own", "decode-1-a", of(identity.Decode, "decode-1"), true},
		{"one for more parts", "decode-1-a", of(identity.Decode, "decode"), true},
		{"another name", "decode-1-a", of(identity.Decode, "decode-2"), false},
		{"another name, of a client", "", of(identity.Decode, "decode-2"), true},
		{"another role", "decode-1-a", of(identity.Prefill, "decode-1"), false},
		{"another role, of a client", "", of(identity.Prefill, "decode-1"), false},
		{"nobody's", "decode-1-a", authority.Request{CommonName: "x"}, false},
		{"an expired one", "decode-1-a", expired, false},
		{"an expired one, of a client", "", expired, false},
		{"one for later", "", early, false}, // it starts with one, since its own clock may be late
	} {
		cfg := f.issue("decode", of(identity.Decode, "decode-1"))
		source := open(t, cfg)
		if c.belongs != "" {
			if err := source.BelongTo(identity.Decode, c.belongs); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		first := source.Certificate().Leaf.SerialNumber
		f.issue("decode", c.request)
		identity.Forget(source)
		if used := source.Certificate().Leaf.SerialNumber.Cmp(first) != 0; used != c.used {
			t.Errorf("%s: used: %t", c.name, used)
		}
		f.issue("decode", of(identity.Decode, "decode-1"))
		identity.Forget(source)
		if again := source.Certificate().Leaf.SerialNumber; again.Cmp(first) == 0 {
			t.Errorf("%s: a good one is not used after it", c.name)
		}
		if err := open(t, f.issue("other", c.request)).BelongTo(identity.Decode, "decode-1-a"); c.belongs != "" && (err == nil) != c.used {
			t.Errorf("%s, at the start: %v", c.name, err)
		}
	}
}

// A certificate is of no use for longer than the authority that signed it.
func TestExpires(t *testing.T) {
	f := newFiles(t)
	block, _ := pem.Decode(f.PEM())
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	short := open(t, f.issue("short", authority.Request{Lifetime: time.Hour}))
	if got, want := short.Expires(), short.Certificate().Leaf.NotAfter; !got.Equal(want) {
		t.Errorf("%v, want that of the certificate, %v", got, want)
	}
	long := open(t, f.issue("long", authority.Request{Lifetime: 100 * 365 * 24 * time.Hour}))
	if got := long.Expires(); !got.Equal(ca.NotAfter) || !long.Certificate().Leaf.NotAfter.After(got) {
		t.Errorf("%v, want that of the authority, %v", got, ca.NotAfter)
	}
	if got := open(t, identity.Config{CAFile: filepath.Join(f.folder, "ca.crt")}).Expires(); !got.IsZero() {
		t.Errorf("without a certificate: %v", got)
	}
}

// both is a source with the certificate of one that believes another's authority.
func both(t *testing.T, s *identity.Source, f files) *identity.Source {
	t.Helper()
	own := s.Certificate()
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	cfg := authority.Config(folder)
	for name, data := range map[string][]byte{
		cfg.CertFile: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}),
		cfg.KeyFile:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		cfg.CAFile:   f.PEM(),
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, cfg)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	f := newFiles(t)
	good, other := f.issue("a", authority.Request{}), f.issue("b", authority.Request{})
	for _, c := range []struct {
		name   string
		change func(*identity.Config)
		want   string
	}{
		{"no such file", func(c *identity.Config) { c.CertFile += "x" }, "--cert: "},
		{"no key", func(c *identity.Config) { c.KeyFile = "" }, "--key: "},
		{"another's key", func(c *identity.Config) { c.KeyFile = other.KeyFile }, "--cert: "},
		{"a key for authorities", func(c *identity.Config) { c.CAFile = c.KeyFile }, "--ca: "},
		{"a rule that is none", func(c *identity.Config) { c.NameRules = []string{"x"} }, "--tls-role: "},
	} {
		cfg := good
		c.change(&cfg)
		if _, err := identity.Open(cfg, nil); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if (identity.Config{}).Validate() != nil || (identity.Config{CertFile: "x"}).Validate() == nil {
		t.Error("Validate")
	}
}
