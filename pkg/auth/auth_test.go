package auth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/quota"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// newKey draws a key of a tenant.
func newKey(tenant string, scopes ...string) (string, *controlv1.ApiKey) {
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes, record.Limits = tenant, scopes, &controlv1.TenantLimits{RequestsPerMinute: 60}
	return key, record
}

// code is what becomes of a call.
func code(t *testing.T, a *auth.Authenticator, credential string, scope auth.Scope) (*auth.Principal, codes.Code) {
	t.Helper()
	ctx, err := a.Authenticate(t.Context(), credential, scope)
	return auth.FromContext(ctx), status.Code(err)
}

func TestKeys(t *testing.T) {
	a := auth.New(auth.Options{})
	key, record := newKey("acme", "generate")
	if _, got := code(t, a, "Bearer "+key, auth.Generate); got != codes.Unavailable {
		t.Errorf("before the keys are known: %s", got)
	}
	revokedKey, revoked := newKey("acme", "generate")
	revoked.Revoked = timestamppb.Now()
	expiredKey, expired := newKey("acme", "generate")
	expired.Expires = timestamppb.New(time.Now().Add(-time.Second))
	operatorsKey, operators := newKey("ops", "operate")
	strangersKey, _ := newKey("acme", "generate")
	malformedKey, malformed := newKey("", "generate")
	a.SetKeys([]*controlv1.ApiKey{record, revoked, expired, operators, malformed})
	other := key[:len(key)-1] + map[bool]string{true: "0", false: "1"}[key[len(key)-1] == '1']
	for _, c := range []struct {
		name, header string
		scope        auth.Scope
		want         codes.Code
	}{
		{"its key", "Bearer " + key, auth.Generate, codes.OK},
		{"in lower case", "bearer " + key, auth.Generate, codes.OK},
		{"none", "", auth.Generate, codes.Unauthenticated},
		{"of another kind", "Basic " + key, auth.Generate, codes.Unauthenticated},
		{"empty", "Bearer ", auth.Generate, codes.Unauthenticated},
		{"another secret", "Bearer " + other, auth.Generate, codes.Unauthenticated},
		{"the id alone", "Bearer tandem-" + record.GetId(), auth.Generate, codes.Unauthenticated},
		{"a key that nobody made", "Bearer " + strangersKey, auth.Generate, codes.Unauthenticated},
		{"a revoked one", "Bearer " + revokedKey, auth.Generate, codes.Unauthenticated},
		{"an expired one", "Bearer " + expiredKey, auth.Generate, codes.Unauthenticated},
		{"one without a tenant", "Bearer " + malformedKey, auth.Generate, codes.Unauthenticated},
		{"a client's, for operators", "Bearer " + key, auth.Operate, codes.PermissionDenied},
		{"an operator's", "Bearer " + operatorsKey, auth.Operate, codes.OK},
		{"an operator's, for clients", "Bearer " + operatorsKey, auth.Generate, codes.PermissionDenied},
		{"a token where none are taken", "Bearer a.b.c", auth.Generate, codes.Unauthenticated},
	} {
		principal, got := code(t, a, c.header, c.scope)
		if got != c.want || (principal != nil) != (got == codes.OK || got == codes.PermissionDenied) {
			t.Errorf("%s: %s, want %s, principal %+v", c.name, got, c.want, principal)
		}
		if c.name == "its key" && (principal.Tenant != "acme" || principal.Name != record.GetId() || principal.Limits != (quota.Limits{RequestsPerMinute: 60})) {
			t.Errorf("%+v", principal)
		}
	}
	a.SetKeys(nil)
	if _, got := code(t, a, "Bearer "+key, auth.Generate); got != codes.Unauthenticated {
		t.Errorf("after the key is gone: %s", got)
	}
	if strings.Contains(record.String(), key) || strings.Contains(record.String(), key[len(key)-64:]) {
		t.Error("what is kept has the key")
	}
}

func TestCheckKey(t *testing.T) {
	for field, spoil := range map[string]func(*controlv1.ApiKey){
		"":        func(k *controlv1.ApiKey) { k.Expires = timestamppb.New(time.Now().AddDate(99, 0, 0)) },
		"id":      func(k *controlv1.ApiKey) { k.Id = "../policy" },
		"sha256":  func(k *controlv1.ApiKey) { k.Sha256 = []byte("short") },
		"tenant":  func(k *controlv1.ApiKey) { k.Tenant = "a\nb" },
		"scopes":  func(k *controlv1.ApiKey) { k.Scopes = []string{"everything"} },
		"expires": func(k *controlv1.ApiKey) { k.Expires = timestamppb.New(time.Now().AddDate(101, 0, 0)) },
		"limits":  func(k *controlv1.ApiKey) { k.Limits.TokensPerMinute = 1 << 63 },
	} {
		_, record := newKey("acme", "generate")
		record = proto.CloneOf(record)
		spoil(record)
		if got, problem := auth.CheckKey(record); got != field {
			t.Errorf("%q: %q %s", field, got, problem)
		}
	}
}

// identityProvider signs tokens, and serves its keys from a socket, or from files.
type identityProvider struct {
	key    *ecdsa.PrivateKey
	id     string
	issuer string
	folder string
}

func (p *identityProvider) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.key, p.id = key, id
	p.write(t, "keys.json", map[string]any{"keys": []any{ // those of kinds that are not known do no harm
		map[string]string{"kty": "OKP", "crv": "X25519", "use": "enc", "kid": "enc", "x": "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo"},
		map[string]string{"kty": "AKP", "alg": "ML-DSA-65", "kid": "next", "pub": "AAAA"},
		jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"},
	}})
}

func (p *identityProvider) write(t *testing.T, name string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.folder, name), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// token is a signed token, with changes to its claims.
func (p *identityProvider) token(t *testing.T, change func(claims map[string]any)) string {
	t.Helper()
	claims := map[string]any{
		"iss": p.issuer, "aud": "tandem", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"tenant": "acme", "scope": "openid tandem:generate", "tandem_limits": map[string]any{"tokens_per_minute": 1000},
	}
	if change != nil {
		change(claims)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: p.key}, (&jose.SignerOptions{}).WithHeader("kid", p.id))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// begin has an Authenticator that knows the provider.
func (p *identityProvider) begin(t *testing.T, source string) *auth.Authenticator {
	t.Helper()
	config := auth.Config{OIDC: source, Audience: "tandem", TenantClaim: "tenant"}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	a := auth.New(auth.Options{Config: config})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	for { // until it has read the keys
		if _, got := code(t, a, "Bearer "+p.token(t, nil), auth.Generate); got != codes.Unavailable {
			return a
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatal("it does not read the keys")
		}
	}
}

func TestTokens(t *testing.T) {
	p := &identityProvider{folder: t.TempDir()}
	server := httptest.NewServer(http.StripPrefix("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(p.folder, filepath.Base(r.URL.Path)))
	})))
	defer server.Close()
	p.issuer = server.URL
	p.write(t, "openid-configuration", map[string]string{"issuer": p.issuer, "jwks_uri": server.URL + "/keys.json"})
	p.rotate(t, "one")
	a := p.begin(t, server.URL)
	strange := &identityProvider{folder: t.TempDir(), issuer: p.issuer}
	strange.rotate(t, "one")
	for _, c := range []struct {
		name  string
		token string
		want  codes.Code
	}{
		{"good", p.token(t, nil), codes.OK},
		{"with scopes as an array", p.token(t, func(c map[string]any) { delete(c, "scope"); c["scp"] = []string{"generate"} }), codes.OK},
		{"expired", p.token(t, func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }), codes.Unauthenticated},
		{"not valid yet", p.token(t, func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() }), codes.Unauthenticated},
		{"of another issuer", p.token(t, func(c map[string]any) { c["iss"] = "https://evil.example.com" }), codes.Unauthenticated},
		{"for another service", p.token(t, func(c map[string]any) { c["aud"] = "shop" }), codes.Unauthenticated},
		{"without a tenant", p.token(t, func(c map[string]any) { delete(c, "tenant") }), codes.Unauthenticated},
		{"with a tenant that looks like another", p.token(t, func(c map[string]any) { c["tenant"] = "acme\u202e" }), codes.Unauthenticated},
		{"with a tenant and spaces", p.token(t, func(c map[string]any) { c["tenant"] = " acme" }), codes.Unauthenticated},
		{"with a tenant that is no text", p.token(t, func(c map[string]any) { c["tenant"] = 7 }), codes.Unauthenticated},
		{"with negative limits", p.token(t, func(c map[string]any) { c["tandem_limits"] = map[string]any{"concurrency": -1} }), codes.Unauthenticated},
		{"with a limit that is not known", p.token(t, func(c map[string]any) { c["tandem_limits"] = map[string]any{"request_per_minute": 1} }), codes.Unauthenticated},
		{"with limits that are null", p.token(t, func(c map[string]any) { c["tandem_limits"] = nil }), codes.Unauthenticated},
		{"with a limit that is null", p.token(t, func(c map[string]any) { c["tandem_limits"] = map[string]any{"concurrency": nil} }), codes.Unauthenticated},
		{"with a limit that is text", p.token(t, func(c map[string]any) { c["tandem_limits"] = map[string]any{"concurrency": "1"} }), codes.Unauthenticated},
		{"with LIMITS", p.token(t, func(c map[string]any) {
			c["TANDEM_LIMITS"] = map[string]any{"tokens_per_minute": 9}
			c["Scope"] = "operate"
		}), codes.OK},
		{"for this service in AUD", p.token(t, func(c map[string]any) { c["aud"], c["AUD"] = "shop", "tandem" }), codes.Unauthenticated},
		{"of this issuer in iſs", p.token(t, func(c map[string]any) { c["iss"], c["iſs"] = "https://evil.example.com", p.issuer }), codes.Unauthenticated},
		{"of somebody else in Sub", p.token(t, func(c map[string]any) { c["Sub"] = "bob" }), codes.Unauthenticated},
		{"valid for longer in Exp", p.token(t, func(c map[string]any) {
			c["exp"], c["exP"] = time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Hour).Unix()
		}), codes.Unauthenticated},
		{"without an end", p.token(t, func(c map[string]any) { delete(c, "exp") }), codes.Unauthenticated},
		{"with a scope in capitals", p.token(t, func(c map[string]any) { delete(c, "scope"); c["SCOPE"] = "generate" }), codes.PermissionDenied},
		{"without a scope", p.token(t, func(c map[string]any) { delete(c, "scope") }), codes.PermissionDenied},
		{"signed by somebody else", strange.token(t, nil), codes.Unauthenticated},
		{"not signed", "eyJhbGciOiJub25lIn0.eyJ0ZW5hbnQiOiJhY21lIn0.", codes.Unauthenticated},
		{"too long", p.token(t, func(c map[string]any) { c["more"] = strings.Repeat("x", 20_000) }), codes.Unauthenticated},
	} {
		for range 2 { // the second time it may be known
			principal, got := code(t, a, "Bearer "+c.token, auth.Generate)
			if got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
			if got == codes.OK && (principal.Tenant != "acme" || principal.Name != "alice" || principal.Limits.TokensPerMinute != 1000 || !slices.Equal(principal.Scopes, []auth.Scope{auth.Generate})) {
				t.Errorf("%+v", principal)
			}
		}
	}
}

// The provider's keys are read again for a token that none of them has signed, from files too.
func TestProviderRotatesItsKeys(t *testing.T) {
	p := &identityProvider{folder: t.TempDir(), issuer: "https://id.example.com"}
	p.write(t, "discovery.json", map[string]string{"issuer": p.issuer, "jwks_uri": "keys.json"})
	p.rotate(t, "one")
	a := p.begin(t, filepath.Join(p.folder, "discovery.json"))
	old := p.token(t, nil)
	if _, got := code(t, a, "Bearer "+old, auth.Generate); got != codes.OK {
		t.Fatalf("before: %s", got)
	}
	p.rotate(t, "two")
	auth.Forget(a)
	if _, got := code(t, a, "Bearer "+p.token(t, nil), auth.Generate); got != codes.OK {
		t.Errorf("signed with the new key: %s", got)
	}
	if _, got := code(t, a, "Bearer "+old, auth.Generate); got != codes.Unauthenticated {
		t.Errorf("signed with the key that is gone: %s", got)
	}
	// A provider that is away leaves the last keys.
	if err := os.Remove(filepath.Join(p.folder, "discovery.json")); err != nil {
		t.Fatal(err)
	}
	auth.Forget(a)
	if _, got := code(t, a, "Bearer "+old, auth.Generate); got != codes.Unauthenticated {
		t.Errorf("signed with the key that is gone, without the provider: %s", got)
	}
	if _, got := code(t, a, "Bearer "+p.token(t, nil), auth.Generate); got != codes.OK {
		t.Errorf("without the provider: %s", got)
	}
}

// A provider with no key that is known here is asked again: until it has one, no token is taken.
func TestNoKeyIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &identityProvider{folder: t.TempDir(), issuer: "https://id.example.com"}
		p.rotate(t, "one")
		p.write(t, "discovery.json", map[string]string{"issuer": p.issuer, "jwks_uri": "keys.json"})
		p.write(t, "keys.json", map[string]any{"keys": []any{map[string]string{"kty": "AKP", "alg": "ML-DSA-65"}}})
		a := auth.New(auth.Options{Config: auth.Config{OIDC: filepath.Join(p.folder, "discovery.json"), Audience: "tandem", TenantClaim: "tenant"}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { a.Run(ctx) })
		defer running.Wait()
		defer cancel()
		synctest.Wait()
		if _, got := code(t, a, "Bearer "+p.token(t, nil), auth.Generate); got != codes.Unavailable {
			t.Errorf("while no key is known: %s", got)
		}
		p.rotate(t, "two")
		<-time.After(time.Minute)
		if _, got := code(t, a, "Bearer "+p.token(t, nil), auth.Generate); got != codes.OK {
			t.Errorf("once one is: %s", got)
		}
	})
}

// slowProvider answers from files, once the test lets it.
type slowProvider struct {
	folder string
	asked  chan struct{} // gets an element, and one is taken from answer, before keys are sent
	answer chan struct{}
}

func (p slowProvider) RoundTrip(r *http.Request) (*http.Response, error) {
	name := filepath.Base(r.URL.Path)
	if name == "keys.json" {
		p.asked <- struct{}{}
		<-p.answer
	}
	file, err := os.Open(filepath.Join(p.folder, name))
	return &http.Response{StatusCode: http.StatusOK, Body: file}, err
}

// A token that is signed with a new key waits while the provider's keys are read for another call, or
// because it is time, and is let in then.
func TestTokensWaitForKeys(t *testing.T) {
	for _, c := range []struct {
		name  string
		first func(t *testing.T, call func() codes.Code) // has the provider be asked
	}{
		{"because it is time", func(*testing.T, func() codes.Code) { <-time.After(auth.KeysEvery) }},
		{"for another call", func(t *testing.T, call func() codes.Code) {
			<-time.After(auth.KeysEvery / 2)
			go func() {
				if got := call(); got != codes.OK {
					t.Errorf("the first call: %s", got)
				}
			}()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := slowProvider{t.TempDir(), make(chan struct{}), make(chan struct{})}
				defer auth.AskThrough(slow)()
				p := &identityProvider{folder: slow.folder, issuer: "https://id.example.com"}
				p.write(t, "openid-configuration", map[string]string{"issuer": p.issuer, "jwks_uri": p.issuer + "/keys.json"})
				p.rotate(t, "one")
				a := auth.New(auth.Options{Config: auth.Config{OIDC: p.issuer, Audience: "tandem", TenantClaim: "tenant"}})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { a.Run(ctx) })
				defer running.Wait()
				defer cancel()
				<-slow.asked
				slow.answer <- struct{}{}
				synctest.Wait()
				p.rotate(t, "two")
				token := p.token(t, nil)
				call := func() codes.Code {
					_, got := code(t, a, "Bearer "+token, auth.Generate)
					return got
				}
				c.first(t, call)
				<-slow.asked
				running.Go(func() {
					if got := call(); got != codes.OK {
						t.Errorf("a call meanwhile: %s", got)
					}
				})
				gone, leave := context.WithCancel(ctx)
				left := make(chan struct{})
				go func() {
					defer close(left)
					_, _ = a.Authenticate(gone, "Bearer "+token, auth.Generate)
				}()
				synctest.Wait()
				leave()
				<-left // though the provider has not answered
				slow.answer <- struct{}{}
				synctest.Wait()
			})
		})
	}
}

func TestWhoIsAsked(t *testing.T) {
	for _, c := range []struct {
		name   string
		config auth.Config
		listen string
		clear  bool // not encrypted
		asks   bool
		fails  string
	}{
		{"loopback", auth.Config{}, "127.0.0.1:1", true, false, ""},
		{"IPv6 loopback", auth.Config{}, "[::1]:1", true, false, ""},
		{"localhost", auth.Config{}, "localhost:1", true, false, ""},
		{"a socket", auth.Config{}, "unix:///run/a", true, false, ""},
		{"every interface", auth.Config{}, "0.0.0.0:1", false, true, ""},
		{"every interface, without a host", auth.Config{}, ":1", false, true, ""},
		{"a name", auth.Config{}, "router:1", false, true, ""},
		{"every interface, in the clear", auth.Config{}, "0.0.0.0:1", true, false, "--listen 0.0.0.0:1: "},
		{"none on loopback", auth.Config{Mode: auth.None}, "127.0.0.1:1", true, false, ""},
		{"none elsewhere", auth.Config{Mode: auth.None}, "0.0.0.0:1", false, false, "--auth none: "},
		{"none elsewhere, insecure", auth.Config{Mode: auth.None, Insecure: true}, "0.0.0.0:1", true, false, ""},
		{"insecure elsewhere", auth.Config{Insecure: true}, "0.0.0.0:1", true, false, ""},
		{"required elsewhere", auth.Config{Mode: auth.Required}, "0.0.0.0:1", false, true, ""},
		{"required elsewhere, in the clear", auth.Config{Mode: auth.Required}, "0.0.0.0:1", true, false, "--listen 0.0.0.0:1: "},
		{"required elsewhere, in the clear, insecure", auth.Config{Mode: auth.Required, Insecure: true}, "0.0.0.0:1", true, true, ""},
		{"required on loopback", auth.Config{Mode: auth.Required}, "127.0.0.1:1", true, true, ""},
		{"published on loopback", auth.Config{PublishedOn: "127.0.0.1"}, "0.0.0.0:1", true, false, ""},
		{"published everywhere", auth.Config{PublishedOn: "0.0.0.0"}, "0.0.0.0:1", false, true, ""},
		{"published everywhere, in the clear", auth.Config{PublishedOn: "0.0.0.0"}, "0.0.0.0:1", true, false, "--listen 0.0.0.0:1: "},
		{"published everywhere, but not listening there", auth.Config{PublishedOn: "0.0.0.0"}, "127.0.0.1:1", true, false, ""},
	} {
		asks, err := c.config.Asks(map[string]string{"listen": c.listen, "http": ""}, !c.clear)
		if asks != c.asks || (err != nil) != (c.fails != "") || err != nil && !strings.HasPrefix(err.Error(), c.fails) {
			t.Errorf("%s: %t, %v", c.name, asks, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, c := range map[string]auth.Config{
		"--auth: ":              {Mode: "maybe"},
		"--oidc-audience: ":     {OIDC: "https://id.example.com"},
		"--oidc-tenant-claim: ": {OIDC: "https://id.example.com", Audience: "a"},
		"--oidc: ":              {OIDC: "http://id.example.com", Audience: "a", TenantClaim: "t"},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzCredential(f *testing.F) {
	key, record := newKey("acme", "generate")
	for _, seed := range []string{"Bearer " + key, "bearer tandem-", "Bearer a.b.c", "Bearer eyJhbGciOiJub25lIn0.e30.", ""} {
		f.Add(seed)
	}
	folder := f.TempDir()
	document := filepath.Join(folder, "d.json")
	if err := os.WriteFile(document, []byte(`{"issuer":"https://id.example.com","jwks_uri":"k.json"}`), 0o600); err != nil {
		f.Fatal(err)
	}
	keys := `{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}`
	if err := os.WriteFile(filepath.Join(folder, "k.json"), []byte(keys), 0o600); err != nil {
		f.Fatal(err)
	}
	a := auth.New(auth.Options{Config: auth.Config{OIDC: document, Audience: "a", TenantClaim: "tenant"}})
	a.SetKeys([]*controlv1.ApiKey{record})
	if err := auth.Fetch(f.Context(), a); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header string) {
		ctx, err := a.Authenticate(t.Context(), header, auth.Generate)
		if let := auth.FromContext(ctx) != nil; let != (err == nil) || let && !strings.HasSuffix(strings.TrimSpace(header), key) {
			t.Errorf("%q: %v", header, err)
		}
	})
}
